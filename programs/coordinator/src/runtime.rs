//! The entrypoint, the allocator, the panic handler and, for upstream LLVM, the `mem*` functions of both programs.
//!
//! Anchor's own entrypoint expects the instruction data in a second register (SIMD-0321). This one finds the data by
//! walking the accounts, about ten compute units each, so that the program also runs on older runtimes. Both programs
//! include this file through `#[path]`, because exported symbols must live in the program's own crate.

#[cfg(target_os = "solana")]
mod entry {
    anchor_lang::pinocchio::default_allocator!();
    anchor_lang::pinocchio::default_panic_handler!();

    /// Bytes of an account before its data: flags, original length, key, owner, lamports, length.
    const HEADER: usize = 88;
    /// Offset of the data length within that header.
    const DATA_LENGTH: usize = 80;
    /// Bytes that the runtime reserves after the data for growth.
    const GROWTH: usize = 10_240;
    /// First byte of an account that does not repeat an earlier one.
    const NOT_DUPLICATE: u8 = 0xff;

    /// # Safety
    /// Only the runtime may call this, with a pointer to its serialised parameters.
    #[no_mangle]
    pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
        let count = *(input as *const u64);
        let mut account = input.add(8);
        for _ in 0..count {
            if *account == NOT_DUPLICATE {
                let length = *(account.add(DATA_LENGTH) as *const u64) as usize;
                account = account.add(HEADER + ((length + 7) & !7) + GROWTH + 8);
            } else {
                account = account.add(8);
            }
        }
        let data = account.add(8); // after the last account: the data's length, then the data
        crate::__anchor_dispatch(input, data)
    }
}

/// Memory functions that upstream LLVM expects from the program. The official platform tools have them built in.
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
