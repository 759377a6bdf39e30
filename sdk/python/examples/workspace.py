"""Uses a workspace: a sandbox with a name, which is suspended while it is not needed."""

from forkd import Client

with Client() as client:
    workspace = client.workspaces.create("example-workspace", "python-numpy", idle_timeout=3600)
    try:
        print(workspace.sandbox().commands.run("echo at work").stdout, end="")
        print(workspace.suspend().status)
        print(workspace.resume().status)
        print([w.name for w in client.workspaces.list() if w.name == workspace.name])
    finally:
        workspace.delete()
