# Sourced by other scripts. Prints errors, finds the console script, checks the cluster's name, and
# finds or creates a wallet.

# fail STATUS SENTENCE FIX: the form of every error.
fail() {
    printf 'error: %s\nfix: %s\n' "$2" "$3" >&2
    exit "$1"
}

# misused SENTENCE ARGUMENTS EXAMPLE: print a usage error; ARGUMENTS are those that the script takes.
misused() {
    fail 2 "$1" "call it as: sh scripts/$(basename -- "$0") $2 (for example: sh scripts/$(basename -- "$0") $3)"
}

# These scripts print their own next steps.
export AFTERMATH_QUIET=1

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
if [ -x "$here/.venv/bin/aftermath-solana" ]; then
    aftermath=$here/.venv/bin/aftermath-solana
elif command -v aftermath-solana >/dev/null 2>&1; then
    aftermath=aftermath-solana
else
    fail 1 "aftermath-solana is not installed" "make env"
fi

# take_cluster localnet|devnet|testnet|mainnet|URL: set `rpc` to the value for --rpc (the variable RPC overrides it for
# localnet), and make errors refer to the script's argument instead of --rpc.
take_cluster() {
    AFTERMATH_RECIPE="the first word after sh scripts/$(basename -- "$0")"
    case $1 in
        localnet)
            rpc=${RPC:-localnet}
            AFTERMATH_RECIPE="the variable RPC"
            ;;
        devnet | testnet | mainnet | http://* | https://*) rpc=$1 ;;
        "")
            fail 2 "the cluster's name is empty" "say localnet, devnet, testnet, mainnet or an http(s) address as the \
first word; is the variable set that stands there?"
            ;;
        *)
            fail 2 "'$1' is not a cluster" "say localnet, devnet, testnet, mainnet or an http(s) address"
            ;;
    esac
    export AFTERMATH_RECIPE
}

# own_wallet CLUSTER NAME: on a local network, create a wallet unless one is given. Elsewhere require one: from a
# variable, `config set wallet` or the Solana CLI.
own_wallet() {
    [ -z "${WALLET_PRIVATE_KEY_PATH:-}" ] && [ -z "${RAW_WALLET_PRIVATE_KEY:-}" ] || return 0
    if [ "$1" != localnet ]; then
        ! "$aftermath" show-identity >/dev/null 2>&1 || return 0
        fail 1 "no wallet was given" "make one with '$aftermath show-identity --create -w wallet.json', send it SOL, \
and name it by its absolute path in the variable WALLET_PRIVATE_KEY_PATH"
    fi
    WALLET_PRIVATE_KEY_PATH=$here/runs/wallets/$2.json
    export WALLET_PRIVATE_KEY_PATH
    if [ ! -f "$WALLET_PRIVATE_KEY_PATH" ]; then
        "$aftermath" show-identity --wallet-private-key-path "$WALLET_PRIVATE_KEY_PATH" --create
    fi
}
