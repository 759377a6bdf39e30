package mcp

// instructions tell a model how to use sandboxes. They must be short, because clients add them to
// every prompt.
const instructions = `forkd runs microVM sandboxes. A sandbox is a whole Linux machine: memory, processes, files. You are root in it.
Unlike a container, a running sandbox can be copied in milliseconds, with everything in its memory, and returned to an earlier state.

Begin: list_snapshots, then spawn_sandboxes from one of them. Every tool takes sandbox_id; there is no current sandbox. Kill what you no longer need.

When to branch:
- Before a step that is hard to undo (a migration, rm, an upgrade, a large refactoring): branch with n=0 gives a tag; if the step goes wrong, rollback to that tag. The sandbox keeps its id.
- When several approaches are plausible: do not try one after another in the same sandbox. Use fork_and_run with one command per approach; they run concurrently from the same state, you get a table, and keep="best" or "first" leaves the winner running.
- When something is flaky or random: fork_and_run with one command and attempts=n.
- After an expensive setup (dependencies installed, server warm, data loaded): branch once, then spawn_sandboxes from the tag as often as you like. Do not repeat the setup.
- To look at a state without changing it: fork, look in the copy, kill the copy.
When not to: for single read-only commands, and for steps that you can repeat cheaply.

Copies are independent: they share no files and no memory after the fork. Connections to servers outside are cut in a copy, and the world outside is not rolled back.
Long commands: start_command answers at once with a pid; wait_command waits, and may be called again. Use exec_command for commands that end within a minute.
Interactive Python or data work: run_code keeps variables between calls, and a fork copies them.
Long output is cut in the middle, and the answer says how much is missing. To see all, write it to a file and use read_file with an offset.
Errors have a code, a detail and a fix. Follow the fix.`
