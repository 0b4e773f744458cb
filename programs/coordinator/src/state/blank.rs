//! `Blank`: the description of an account that the program creates.

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

/// An account to create. Its data begins with the discriminator, followed by zeros.
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
    /// System's CreateAccount refuses an address that has lamports, and anyone may send some there. So this uses
    /// Transfer, Allocate and Assign in every case.
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

    /// Transfer the lamports that the account lacks to be exempt from rent.
    fn fund(&self, payer: &AccountView) -> Result<()> {
        // As u32, so that the product cannot overflow: a checked 64-bit product needs 128 bits, which sBPF lacks.
        let size = u64::from(self.space as u32) + ACCOUNT_STORAGE_OVERHEAD;
        let lamports = (size * DEFAULT_LAMPORTS_PER_BYTE).saturating_sub(self.view.lamports());
        if lamports > 0 {
            Transfer { from: payer, to: &self.view, lamports }.invoke()?;
        }
        Ok(())
    }
}
