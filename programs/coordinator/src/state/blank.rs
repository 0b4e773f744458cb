//! `Blank`: an account that the program is about to create.

use anchor_lang::{
    find_and_verify_program_address,
    pinocchio::{
        cpi::{Seed, Signer as SignerSeeds},
        sysvars::rent::{ACCOUNT_STORAGE_OVERHEAD, DEFAULT_LAMPORTS_PER_BYTE},
    },
    prelude::*,
};
use pinocchio_system::instructions::{Allocate, Assign, Transfer};

/// Maximum number of seeds of any of the program's addresses.
const SEEDS: usize = 4;

/// What an account is made from; its bytes begin with the discriminator and are zero after that.
pub struct Blank<'a> {
    pub view: AccountView,
    /// Without the bump.
    pub seeds: &'a [&'a [u8]],
    pub space: usize,
    pub discriminator: &'static [u8],
}

impl Blank<'_> {
    /// Create the account at its canonical address, paid by `payer`, and return its bump.
    ///
    /// Anyone may have sent lamports to the address before, which System's CreateAccount refuses:
    /// so the account is topped up, allocated and assigned, with the same instructions in any case.
    #[inline(never)]
    pub fn create(&self, payer: &AccountView) -> Result<u8> {
        let bump = [find_and_verify_program_address(self.seeds, &crate::ID, self.view.address())?];
        let mut seeds: [Seed; SEEDS + 1] = core::array::from_fn(|_| Seed::from(&bump));
        let count = self.seeds.len().min(SEEDS);
        for (seed, bytes) in seeds.iter_mut().zip(&self.seeds[..count]) {
            *seed = Seed::from(*bytes);
        }
        let signer = || [SignerSeeds::from(&seeds[..=count])];
        self.fund(payer)?;
        Allocate { account: &self.view, space: self.space as u64 }.invoke_signed(&signer())?;
        Assign { account: &self.view, owner: &crate::ID }.invoke_signed(&signer())?;
        let mut view = self.view;
        // SAFETY: this instruction created the account, and nothing else borrows its bytes.
        let data = unsafe { view.borrow_unchecked_mut() };
        data[..self.discriminator.len()].copy_from_slice(self.discriminator);
        Ok(bump[0])
    }

    /// Pay what the account still lacks to be exempt from rent.
    fn fund(&self, payer: &AccountView) -> Result<()> {
        // as u32: a product of 64 bits that may overflow needs 128 bits, which sBPF has not
        let size = u64::from(self.space as u32) + ACCOUNT_STORAGE_OVERHEAD;
        let lamports = (size * DEFAULT_LAMPORTS_PER_BYTE).saturating_sub(self.view.lamports());
        if lamports > 0 {
            Transfer { from: payer, to: &self.view, lamports }.invoke()?;
        }
        Ok(())
    }
}
