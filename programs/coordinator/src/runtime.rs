//! What the sBPF runtime asks of a program and Anchor 2 does not bring on every toolchain.
//!
//! Owns the entrypoint, the allocator, the panic handler and (only for upstream LLVM) the `mem*` functions.
//! Anchor's own entrypoint expects the instruction data in a second register (SIMD-0321). This one finds the data by
//! walking the accounts, about ten compute units each, so that the program also runs on older runtimes.
//! Shared by both programs through `#[path]`, because exported symbols must live in the program's own crate.

#[cfg(target_os = "solana")]
mod entry {
    anchor_lang::pinocchio::default_allocator!();
    anchor_lang::pinocchio::default_panic_handler!();

    /// Bytes of an account before its data: flags, original length, key, owner, lamports, length.
    const HEADER: usize = 88;
    /// Offset of the data length within that header.
    const DATA_LENGTH: usize = 80;
    /// Room the runtime leaves behind the data for growth.
    const GROWTH: usize = 10_240;
    /// First byte of an account that is not a repetition of an earlier one.
    const NOT_DUPLICATE: u8 = 0xff;

    /// # Safety
    /// Called by the runtime only, with a pointer to its serialised parameters.
    #[no_mangle]
    pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
        let count = *(input as *const u64);
        let mut at = input.add(8);
        for _ in 0..count {
            if *at == NOT_DUPLICATE {
                let length = *(at.add(DATA_LENGTH) as *const u64) as usize;
                at = at.add(HEADER + ((length + 7) & !7) + GROWTH + 8);
            } else {
                at = at.add(8);
            }
        }
        crate::__anchor_dispatch(input, at.add(8))
    }
}

/// Upstream LLVM asks the program for these; the official platform tools have them built in.
#[cfg(upstream_bpf)]
mod memory {
    use solana_define_syscall::definitions::{sol_memcmp_, sol_memcpy_, sol_memmove_, sol_memset_};

    #[no_mangle]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        sol_memcpy_(to, from, bytes as u64);
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        sol_memmove_(to, from, bytes as u64);
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
        sol_memset_(to, value as u8, bytes as u64);
        to
    }

    #[no_mangle]
    unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
        let mut order = 0;
        sol_memcmp_(left, right, bytes as u64, &mut order);
        order
    }

    #[no_mangle]
    unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
        memcmp(left, right, bytes)
    }
}
