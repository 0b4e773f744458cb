# Sourced by the scripts beside it: finds the console script and turns a cluster's name into its RPC address.

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
if [ -x "$here/.venv/bin/aftermath-solana" ]; then
    aftermath=$here/.venv/bin/aftermath-solana
elif command -v aftermath-solana >/dev/null 2>&1; then
    aftermath=aftermath-solana
else
    echo "error: aftermath-solana is not installed; run 'make env' first" >&2
    exit 1
fi

# cluster_rpc localnet|devnet|mainnet|URL: prints the RPC address.
cluster_rpc() {
    case $1 in
        localnet) echo "${RPC:-http://127.0.0.1:8899}" ;;
        devnet) echo https://api.devnet.solana.com ;;
        testnet) echo https://api.testnet.solana.com ;;
        mainnet | mainnet-beta) echo https://api.mainnet-beta.solana.com ;;
        http://* | https://*) echo "$1" ;;
        *)
            echo "error: '$1' is not a cluster; use localnet, devnet, testnet, mainnet or an http(s) address" >&2
            exit 2
            ;;
    esac
}

# own_wallet CLUSTER NAME: on a local network, where money is free, makes a wallet unless one is given.
own_wallet() {
    if [ "$1" = localnet ] && [ -z "${WALLET_PRIVATE_KEY_PATH:-}" ] && [ -z "${RAW_WALLET_PRIVATE_KEY:-}" ]; then
        WALLET_PRIVATE_KEY_PATH=$here/runs/wallets/$2.json
        export WALLET_PRIVATE_KEY_PATH
        if [ ! -f "$WALLET_PRIVATE_KEY_PATH" ]; then
            "$aftermath" show-identity --wallet-private-key-path "$WALLET_PRIVATE_KEY_PATH" --create
        fi
    fi
}
