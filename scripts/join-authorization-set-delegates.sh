#!/bin/sh
# Replace the delegates of an authorized key (grantee), for all runs of the grantor or for RUN_ID, as the authorization
# allows.
set -eu
. "$(dirname -- "$0")/cluster.sh"
said="a cluster, the grantor's public key and the grantee's key file are needed"
takes="CLUSTER GRANTOR_PUBKEY GRANTEE_KEYPAIR_FILE [DELEGATE_KEYPAIR_FILE...]"
example="devnet \$GRANTOR_PUBKEY grantee.json delegate*.json"
[ $# -ge 3 ] || misused "$said" "$takes" "$example"
[ -n "$2" ] || misused "the second word is empty: GRANTOR_PUBKEY; is its variable set?" "$takes" "$example"
[ -n "$3" ] || misused "the third word is empty: GRANTEE_KEYPAIR_FILE; is its variable set?" "$takes" "$example"
[ ! -f "$2" ] || misused "$2 is a file, and the second word is the grantor's public key; is its variable set?" \
    "$takes" "$example"
take_cluster "$1"
grantor=$2
grantee=$3
shift 3
count=$#
while [ "$count" -gt 0 ]; do
    delegate=$1
    shift
    set -- "$@" --delegates-added "$delegate"
    count=$((count - 1))
done
exec "$aftermath" join-authorization-delegate --rpc "$rpc" --wallet-private-key-path "$grantee" \
    --join-authority "$grantor" --delegates-clear "$@"
