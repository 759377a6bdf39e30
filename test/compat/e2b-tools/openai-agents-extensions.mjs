// @openai/agents-extensions: sessions of its sandbox, in both ways in which they save a workspace; and an agent.
import { Manifest, SandboxAgent } from '@openai/agents/sandbox'
import { Runner, Usage } from '@openai/agents'
import { E2BSandboxClient } from '@openai/agents-extensions/sandbox/e2b'
import { NotApplicable, test, want } from './cases.mjs'

const PORT = 18436
const LONG = 300_000
const ROOT = '/home/user/workspace'
const text = (bytes) => new TextDecoder().decode(bytes)

// A model that calls a tool and then ends.
class Scripted {
  calls = []
  async getResponse(request) {
    this.calls.push(request)
    const output = this.calls.length === 1
      ? { type: 'function_call', callId: '1', name: 'exec_command', arguments: JSON.stringify({ cmd: 'echo sum $((40+2))' }), status: 'completed' }
      : { type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'done' }] }
    return { usage: new Usage(), output: [output], responseId: String(this.calls.length) }
  }
}

for (const mode of [{ workspacePersistence: 'snapshot' },
  { workspacePersistence: 'tar', sandboxType: 'e2b_code_interpreter', template: 'code-interpreter-v1' }]) {
  const name = mode.workspacePersistence
  const client = new E2BSandboxClient({ timeout: 1800, commandTimeoutMs: LONG, requestTimeoutMs: LONG, connectionTimeoutMs: LONG,
    exposedPorts: [PORT], env: { GIVEN: 'word' }, ...mode })
  const manifest = new Manifest({ root: ROOT, entries: { 'given.txt': { type: 'file', content: 'given' } } })
  let session
  const exec = (cmd, more = {}) => session.execCommand({ cmd, yieldTimeMs: LONG, ...more })

  await test(`${name}: create`, async () => { session = await client.create({ manifest }); want(await session.running(), 'not running') })
  await test(`${name}: files of the manifest`, async () => {
    want(text(await session.readFile({ path: 'given.txt' })) === 'given', 'content')
  })
  await test(`${name}: a command`, async () => {
    const got = await exec('echo $GIVEN; pwd')
    want(got.includes(`word\n${ROOT}`), got)
  })
  await test(`${name}: a command that fails`, async () => {
    const got = await exec('echo out; echo err >&2; exit 7')
    want(got.includes('out') && got.includes('err') && got.includes('7'), got)
  })
  await test(`${name}: a command in another directory`, async () => {
    await exec('mkdir -p below')
    const got = await exec('pwd', { workdir: 'below' })
    want(got.includes(`${ROOT}/below`), got)
  })
  await test(`${name}: files`, async () => {
    await session.materializeEntry({ path: 'sub/a.txt', entry: { type: 'file', content: 'héllo' } })
    want(text(await session.readFile({ path: 'sub/a.txt' })) === 'héllo', 'content')
    want(await session.pathExists('sub/a.txt') && !(await session.pathExists('sub/b')), 'pathExists')
    want(await session.directoryExists('sub'), 'directoryExists')
  })
  await test(`${name}: a missing file`, async () => {
    let error
    try { await session.readFile({ path: 'missing' }) } catch (e) { error = e }
    want(error, 'no error')
  })
  await test(`${name}: the editor applies a patch`, async () => {
    const editor = session.createEditor()
    await editor.createFile({ type: 'create_file', path: 'patched.txt', diff: '+one\n+two' })
    await editor.updateFile({ type: 'update_file', path: 'patched.txt', diff: '@@\n one\n-two\n+three' })
    want(text(await session.readFile({ path: 'patched.txt' })).trim() === 'one\nthree', text(await session.readFile({ path: 'patched.txt' })))
    await editor.deleteFile({ type: 'delete_file', path: 'patched.txt' })
    want(!(await session.pathExists('patched.txt')), 'it still exists')
  })
  await test(`${name}: a terminal`, async () => {
    const started = await session.execCommand({ cmd: 'cat', tty: true, yieldTimeMs: 2000 })
    const sessionId = Number(/session ID (\d+)/i.exec(started)[1])
    let output = await session.writeStdin({ sessionId, chars: 'typed\n', yieldTimeMs: 3000 })
    for (let n = 0; n < 10 && output.split('typed').length < 3; n++) output += await session.writeStdin({ sessionId, chars: '', yieldTimeMs: 3000 })
    want(output.split('typed').length >= 3, output) // the terminal's echo, and cat's
    await session.writeStdin({ sessionId, chars: '\u0004', yieldTimeMs: 3000 })
  })
  await test(`${name}: a server at an exposed port`, async () => {
    await session.materializeEntry({ path: 'www/a.txt', entry: { type: 'file', content: 'served' } })
    await exec(`cd www; nohup python3 -m http.server ${PORT} >/dev/null 2>&1 & echo $! >server`)
    const end = await session.resolveExposedPort(PORT)
    let got
    for (let n = 0; n < 300; n++) {
      got = await fetch(`https://${end.host}:${end.port}/a.txt`) // the tool takes a host with a port for one without TLS
      if (got.status !== 502) break
      await new Promise((done) => setTimeout(done, 500))
    }
    want(await got.text() === 'served', end)
    await exec('kill $(cat server)')
  })
  await test(`${name}: an agent uses its tools`, async () => {
    const model = new Scripted()
    const agent = new SandboxAgent({ name: 'a', model })
    const result = await new Runner({ tracingDisabled: true }).run(agent, 'add', { sandbox: { session } })
    want(result.finalOutput === 'done' && JSON.stringify(model.calls[1].input).includes('sum 42'), model.calls[1]?.input)
  })
  await test(`${name}: a workspace is saved and restored`, async () => {
    if (process.env.COMPAT_FAKED && name === 'snapshot') throw new NotApplicable('fake VMs share their files')
    await session.materializeEntry({ path: 'state', entry: { type: 'file', content: 'saved' } })
    const saved = await session.persistWorkspace()
    await session.materializeEntry({ path: 'state', entry: { type: 'file', content: 'changed' } })
    await session.hydrateWorkspace(saved)
    want(text(await session.readFile({ path: 'state' })) === 'saved', 'content')
  })
  await test(`${name}: a session is resumed from its state`, async () => {
    await session.materializeEntry({ path: 'kept', entry: { type: 'file', content: 'kept' } })
    const stored = JSON.parse(JSON.stringify(await client.serializeSessionState(session.state)))
    const again = await client.resume(await client.deserializeSessionState(stored))
    want(again.state.sandboxId === session.state.sandboxId && text(await again.readFile({ path: 'kept' })) === 'kept', again.state)
  })
  await test(`${name}: a session ends`, async () => {
    await session.delete()
    let error
    try { await exec('true') } catch (e) { error = e }
    want(error, 'it still runs commands')
  })
}
