# Sourced by the scripts beside it: tells errors, finds the console script, turns a cluster's name into its RPC address, and sees to
# a wallet.

# fail STATUS SENTENCE FIX: the form of every error.
fail() {
    printf 'error: %s\nfix: %s\n' "$2" "$3" >&2
    exit "$1"
}

# misused SENTENCE ARGUMENTS EXAMPLE: the command line cannot be meant; ARGUMENTS are those that the script takes.
misused() {
    fail 2 "$1" "call it as: sh scripts/$(basename -- "$0") $2 (for example: sh scripts/$(basename -- "$0") $3)"
}

# The scripts say themselves what comes next.
export AFTERMATH_QUIET=1

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
if [ -x "$here/.venv/bin/aftermath-solana" ]; then
    aftermath=$here/.venv/bin/aftermath-solana
elif command -v aftermath-solana >/dev/null 2>&1; then
    aftermath=aftermath-solana
else
    fail 1 "aftermath-solana is not installed" "make env"
fi

# cluster_rpc localnet|NAME|URL: prints the RPC address. NAME is of clusters.txt, whose lines have a name, an address, and
# whether a faucet gives test SOL there.
cluster_rpc() {
    case $1 in
        localnet) echo "${RPC:-http://127.0.0.1:8899}" ;;
        http://* | https://*) echo "$1" ;;
        "")
            fail 2 "the cluster's name is empty" "say localnet, devnet, testnet, mainnet or an http(s) address as the \
first word; is the variable set that stands there?"
            ;;
        *)
            while read -r name address _; do
                if [ "$name" = "$1" ]; then
                    echo "$address"
                    return
                fi
            done <"$here/scripts/clusters.txt"
            fail 2 "'$1' is not a cluster" "say localnet, devnet, testnet, mainnet or an http(s) address"
            ;;
    esac
}

# own_wallet CLUSTER NAME: on a local network, where money is free, makes a wallet unless one is given; elsewhere it
# must be there, and what names it here is a variable.
own_wallet() {
    [ -z "${WALLET_PRIVATE_KEY_PATH:-}" ] && [ -z "${RAW_WALLET_PRIVATE_KEY:-}" ] || return 0
    if [ "$1" != localnet ]; then
        [ ! -f "${HOME:-}/.config/solana/id.json" ] || return 0
        fail 1 "no wallet was given" "make one with '$aftermath show-identity --create -w wallet.json', send it SOL, \
and name it by its absolute path in the variable WALLET_PRIVATE_KEY_PATH"
    fi
    WALLET_PRIVATE_KEY_PATH=$here/runs/wallets/$2.json
    export WALLET_PRIVATE_KEY_PATH
    if [ ! -f "$WALLET_PRIVATE_KEY_PATH" ]; then
        "$aftermath" show-identity --wallet-private-key-path "$WALLET_PRIVATE_KEY_PATH" --create
    fi
}
