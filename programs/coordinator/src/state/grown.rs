//! `Grown<T>`: an account too large to be created at once. It fails with `NotGrown` until it has its full size.

use crate::errors::CoordinatorError;
use anchor_lang::{accounts::Account, prelude::*, SlabInit};
use bytemuck::{Pod, Zeroable};
use core::ops::{Deref, DerefMut};

/// An `Account<T>` that answers `NotGrown` instead of a bare size error.
pub struct Grown<T: Pod + Zeroable + Owner + Discriminator>(Account<T>);

impl<T: Pod + Zeroable + Owner + Discriminator> Grown<T> {
    /// Size of the fully grown account.
    pub const BYTES: usize = 8 + core::mem::size_of::<T>();

    pub fn address(&self) -> &Address {
        self.0.address()
    }
}

/// Check owner and discriminator of a `T` that may still be growing. Return whether it is fully grown.
pub fn check_growing<T: Pod + Zeroable + Owner + Discriminator>(view: &AccountView) -> Result<bool> {
    require!(view.owned_by(&T::OWNER), ProgramError::IllegalOwner);
    // SAFETY: the bytes live as long as the instruction, and nothing borrows them mutably here.
    let data = unsafe { view.borrow_unchecked() };
    require!(data.len() >= 8 && data[..8] == *T::DISCRIMINATOR, ProgramError::InvalidAccountData);
    Ok(data.len() >= Grown::<T>::BYTES)
}

impl<T: Pod + Zeroable + Owner + Discriminator + SlabInit> AnchorAccount for Grown<T> {
    type Data = T;
    const MIN_DATA_LEN: usize = Self::BYTES;

    fn load(view: AccountView) -> core::result::Result<Self, ProgramError> {
        require!(check_growing::<T>(&view)?, CoordinatorError::NotGrown);
        Account::<T>::load(view).map(Self)
    }

    unsafe fn load_mut(view: AccountView) -> core::result::Result<Self, ProgramError> {
        require!(check_growing::<T>(&view)?, CoordinatorError::NotGrown);
        Account::<T>::load_mut(view).map(Self)
    }

    fn account(&self) -> &AccountView {
        self.0.account()
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator> Deref for Grown<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator> DerefMut for Grown<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator + SlabInit> AccountClose for Grown<T> {
    fn close(&mut self, destination: AccountView) -> ProgramResult {
        self.0.close(destination)
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator> AsRef<AccountView> for Grown<T> {
    fn as_ref(&self) -> &AccountView {
        self.0.view()
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator + SlabInit> ToCpiHandle for Grown<T> {
    fn to_cpi_handle(&self) -> CpiHandle<'_> {
        AnchorAccount::cpi_handle(self)
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator + SlabInit> ToCpiHandleMut for Grown<T> {
    fn try_to_cpi_handle_mut(&mut self) -> Result<CpiHandleMut<'_>> {
        AnchorAccount::try_cpi_handle_mut(self)
    }
}

impl<T: Pod + Zeroable + Owner + Discriminator + IdlAccountType> IdlAccountType for Grown<T> {
    const __IDL_ACCOUNT_ENTRY: Option<&'static str> = T::__IDL_ACCOUNT_ENTRY;
    const __IDL_TYPE_DEF: Option<&'static str> = T::__IDL_TYPE_DEF;

    fn __idl_account_entry() -> Option<&'static str> {
        T::__idl_account_entry()
    }

    fn __idl_type_def() -> Option<&'static str> {
        T::__idl_type_def()
    }

    fn __register_idl_deps(accounts: &mut alloc::vec::Vec<&'static str>, types: &mut alloc::vec::Vec<&'static str>) {
        T::__register_idl_deps(accounts, types);
    }
}
