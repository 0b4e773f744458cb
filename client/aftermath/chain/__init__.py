"""Solana, for this project: RPC with fail-over, the wallet, the two programs' instructions,
subscriptions, deployment.

Knows nothing of torch or of peers. `member.SolanaMember` is what a training member holds;
`client.CoordinatorClient` and `authorizer.Authorizer` are what the commands use; `rpc.RpcPool` is
under all of them.
"""
