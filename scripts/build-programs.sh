#!/usr/bin/env bash
# Builds both programs to sBPF and prints their IDLs, reproducibly and without Solana's platform-tools.
#
#   scripts/build-programs.sh                   rebuild the committed .so and .json files and idl/SHA256SUMS
#   scripts/build-programs.sh --check           rebuild into a temporary folder and fail if any byte differs
#   scripts/build-programs.sh --check-changed   the same, but only if a file differs from idl/SHA256SUMS
#
# idl/SHA256SUMS lists what a build reads and what it wrote. Changing the programs and that list together
# defeats --check-changed, but not --check, which `make nightly` runs.
#
# Needs Debian bookworm and, for the IDLs, any host cargo >= 1.85. What it installs, once and about four minutes:
# rustc 1.96 with LLVM 22 (bookworm-security) and sbpf-linker, built from source into $SBPF_WORK (default ~/.cache/sbpf).
# Those who have the official tools can run `anchor build` on the same sources instead.
#
# Cargo hashes the paths of sources into the names of symbols, and their order follows the names. So sources, std and
# objects lie at one fixed path while they are compiled, and every build starts from nothing: two minutes, equal bytes.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
work="${SBPF_WORK:-$HOME/.cache/sbpf}"
stage=/tmp/aftermath-programs
std="$stage/std/library"
programs=(coordinator authorizer)
# 0.1.x mislinks calls to local functions; 0.2.x asks for LLVM 23, which is not packaged, unless told otherwise
linker_version=0.2.6

# Print the hash of every file that a build reads or writes.
sums() {
  (
    cd "$root"
    find programs Cargo.toml Cargo.lock scripts/build-programs.sh scripts/idl.py scripts/sbpf-solana.json \
      idl/*.json client/aftermath/programs/*.json client/aftermath/programs/*.so -type f |
      LC_ALL=C sort | xargs sha256sum
  )
}

if [ "${1:-}" = --check-changed ] && [ "$(sums)" = "$(cat "$root/idl/SHA256SUMS" 2>/dev/null)" ]; then
  echo "the programs and their sources are those of idl/SHA256SUMS: no build is needed"
  exit 0
fi

require() {
  command -v "$1" >/dev/null || { printf 'error: %s is missing\nfix: %s\n' "$1" "$2" >&2; exit 1; }
}

install_compiler() {
  [ -x /usr/share/cargo/bin/cargo ] && [ -d /usr/lib/rustlib/src/rust/library/std ] &&
    [ -e /usr/lib/llvm-22/bin/llvm-config ] && return
  require apt-get "this recipe needs Debian bookworm (rustc-web, cargo-web, rust-web-src, llvm-22-dev); elsewhere use 'anchor build'"
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo apt-get install -y -qq --no-install-recommends rustc-web cargo-web rust-web-src llvm-22-dev >/dev/null ||
    { printf 'error: rustc-web and LLVM 22 could not be installed\nfix: %s\n' \
      "enable bookworm-security in the apt sources, which carries them" >&2; exit 1; }
}

install_linker() {
  "$work/bin/sbpf-linker" --version 2>/dev/null | grep -q "$linker_version" && return
  LLVM_SYS_221_PREFIX=/usr/lib/llvm-22 LLVM_PREFIX=/usr/lib/llvm-22 RUSTFLAGS="-L /usr/lib/llvm-22/lib" \
    cargo install sbpf-linker --version "$linker_version" --locked --no-default-features \
      --features bpf-linker/llvm-22 --root "$work" --quiet
}

# What is compiled, and nothing else, at the fixed path. Only the owner may write there.
stage_sources() {
  mkdir -m 700 "$stage" 2>/dev/null || [ -O "$stage" ] ||
    { printf 'error: %s belongs to another user, and the programs are built only there\nfix: %s\n' \
      "$stage" "let its owner remove it" >&2; exit 1; }
  exec 9>"$stage/.lock"
  flock 9 # one build at a time
  rm -rf "${stage:?}"/*
  cp -r "$root/Cargo.toml" "$root/Cargo.lock" "$root/programs" "$root/scripts/sbpf-solana.json" "$stage/"
  local cargo_home="${CARGO_HOME:-$HOME/.cargo}"
  mkdir -p "$cargo_home"
  ln -s "$(realpath "$cargo_home")" "$stage/cargo"
  stage_speed
  stage_std
}

# The coordinator is compiled for size (Cargo.toml), but for the rules, which take most compute units. The rules left out
# here cost few units more without it. The attribute is unstable, so it is added to the copy.
stage_speed() {
  local source="$stage/programs/coordinator/src"
  sed -i '1i #![feature(optimize_attribute)]' "$source/lib.rs"
  find "$source/rules" "$source/state" -name '*.rs' ! -name 'validate_*' ! -name text.rs ! -name blank.rs \
    ! -name cases.rs ! -name audits.rs ! -name levels.rs |
    xargs sed -i -E 's/^( *)((pub(\([a-z]+\))? )?fn )/\1#[optimize(speed)]\n\1\2/'
}

# std is compiled for target_os "solana", because dependencies of Anchor (serde, bincode) name it. It uses the stubs for
# "zkvm", which never run.
stage_std() {
  mkdir "$stage/std"
  cp -r "$(realpath /usr/lib/rustlib/src/rust)/library" "$stage/std/"
  grep -rl 'target_os = "zkvm"' "$std/std/src" |
    xargs sed -i 's/target_os = "zkvm"/any(target_os = "zkvm", target_os = "solana")/g'
  sed -i 's/target_arch = "hexagon",/target_arch = "hexagon",\n    target_arch = "bpf",/' "$std/std/src/sys/alloc/mod.rs"
}

# The target (sbpf-solana.json) allows misaligned loads: the VM reads any address, and byte by byte costs 40 % more code
# and time.
compile() { # compile PROGRAM OUT.so
  # Level 3 for the whole coordinator drops `sret`, which the linker's LLVM refuses, and 300 is the
  # lowest threshold at which no call with 6 arguments is left.
  local threshold=600
  [ "$1" != coordinator ] || threshold=300
  local flags=(
    --cfg=upstream_bpf                              # the program brings its own mem* functions (syscalls)
    -Zunstable-options -Cpanic=immediate-abort      # formatting code of panics would break the 4 kB stack frames
    -Crelocation-model=static
    -Cpasses=lower-atomic                           # alloc::sync wants atomics; the VM has one thread
    -Clink-arg=--arch=v0                            # the sBPF version that every runtime accepts
    -Clink-arg=--disable-math-builtins              # keeps out 128-bit functions that LLVM 22 cannot emit
    -Clink-arg=--llvm-args=-bpf-stack-size=4096
    -Clink-arg=-O3
    -Clink-arg=--llvm-args=-unroll-threshold-aggressive=250 # the default of 300 adds 10 kB and saves hardly any units
    "-Clink-arg=--llvm-args=-inline-threshold=$threshold" # calls with more than 5 arguments must vanish by inlining
    "--remap-path-prefix=$stage=/aftermath"
  )
  (
    cd "$stage"
    export PATH="$work/bin:$PATH" CARGO_HOME="$stage/cargo" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
    export RUSTC_BOOTSTRAP_SYNTHETIC_TARGET=1 __CARGO_TESTS_ONLY_SRC_ROOT="$std"
    CARGO_ENCODED_RUSTFLAGS="$(IFS=$'\x1f'; echo "${flags[*]}")"
    export CARGO_ENCODED_RUSTFLAGS
    /usr/share/cargo/bin/cargo build --quiet --locked --release --lib -p "$1" -Zbuild-std=std,panic_abort \
      -Zjson-target-spec --target "$stage/sbpf-solana.json" --target-dir "$stage/target"
  )
  cp "$stage/target/sbpf-solana/release/lib$1.so" "$2"
  chmod 644 "$2"
}

print_idl() { # print_idl PROGRAM OUT.json
  (
    cd "$root"
    cargo test --quiet --locked -p "$1" --features idl-build --target-dir "$root/target/idl" \
      __anchor_private_print_idl -- --show-output --test-threads=1
  ) | python3 "$root/scripts/idl.py" "$1" >"$2"
}

require cargo "install it from https://rustup.rs or with 'apt-get install cargo'"
require flock "install util-linux"
require python3 "install Python 3.11 or newer"
install_compiler
install_linker
stage_sources

built="$(mktemp -d)"
trap 'rm -rf "$built"' EXIT
packaged="$root/client/aftermath/programs"
status=0
for program in "${programs[@]}"; do
  compile "$program" "$built/$program.so"
  print_idl "$program" "$built/$program.json"
  if [ -n "${1:-}" ]; then
    for kind in so json; do
      cmp "$built/$program.$kind" "$packaged/$program.$kind" || status=1
    done
    cmp "$built/$program.json" "$root/idl/$program.json" || status=1
  else
    mkdir -p "$packaged" "$root/idl"
    cp "$built/$program.so" "$built/$program.json" "$packaged/"
    cp "$built/$program.json" "$root/idl/"
  fi
  (cd "$built" && sha256sum "$program.so" "$program.json")
done
if [ -z "${1:-}" ]; then
  sums >"$root/idl/SHA256SUMS"
elif [ "$(sums)" != "$(cat "$root/idl/SHA256SUMS" 2>/dev/null)" ]; then
  status=1
fi
[ "$status" = 0 ] ||
  printf 'error: the committed programs are not those of these sources\nfix: run scripts/build-programs.sh\n' >&2
exit "$status"
