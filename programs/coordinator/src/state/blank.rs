//! `Blank`: an account that the program is about to create.

use anchor_lang::{find_and_verify_program_address, prelude::*};

/// Seeds of any of the program's addresses, at most.
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
    /// Creates the account at its canonical address, paid by `payer`, and returns its bump.
    ///
    /// The only caller of what creates accounts: that takes more arguments than a call on sBPF may, so it must be
    /// inlined, once.
    #[inline(never)]
    pub fn create(&self, payer: &AccountView) -> Result<u8> {
        let bump = [find_and_verify_program_address(self.seeds, &crate::ID, self.view.address())?];
        let mut seeds: [&[u8]; SEEDS + 1] = [&bump; SEEDS + 1];
        let count = self.seeds.len().min(SEEDS);
        seeds[..count].copy_from_slice(&self.seeds[..count]);
        create_account_signed(payer, &self.view, self.space, &crate::ID, &seeds[..=count])?;
        let mut view = self.view;
        // SAFETY: this instruction created the account, and nothing else borrows its bytes.
        let data = unsafe { view.borrow_unchecked_mut() };
        data[..self.discriminator.len()].copy_from_slice(self.discriminator);
        Ok(bump[0])
    }
}
