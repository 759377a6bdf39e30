"""Sets where a sandbox may connect to: first nowhere, then to one server, with a limit."""

from forkd import Network, NetworkLimits, Sandbox

with Sandbox.create("python-numpy", network="none") as sandbox:
    print(sandbox.network.get().mode)
    policy = Network(mode="allow", allow=["pypi.org", "files.pythonhosted.org"], limits=NetworkLimits(connections=10))
    now = sandbox.network.set(policy)
    print(now.mode, len(now.allow) >= 2, now.stats.open)
    with sandbox.fork(1, network="none") as children:
        print("the child:", children[0].network.get().mode)
