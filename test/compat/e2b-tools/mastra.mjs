// @mastra/e2b: the sandbox of a workspace. Its default template is not tested: it installs packages from a mirror.
import { E2BSandbox } from '@mastra/e2b'
import { Sandbox } from 'e2b'
import { expectedToFail, test, want } from './cases.mjs'

const PORT = 18435
const ID = `mastra-${process.pid}-${Date.now()}`
const options = { id: ID, template: 'base', timeout: 1_800_000, env: { GIVEN: 'word' }, metadata: { made: 'here' } }
let box = new E2BSandbox(options)

await test('start', async () => { await box.start(); want(await box.isReady(), 'not ready') })
await test('executeCommand', async () => {
  const got = await box.executeCommand('echo', ['$GIVEN', 'a b', "it's"])
  want(got.success && got.stdout === "$GIVEN a b it's\n", got)
})
await test('executeCommand: environment and directory', async () => {
  const got = await box.executeCommand('sh', ['-c', 'echo $GIVEN $MORE; pwd'], { env: { MORE: 'more' }, cwd: '/tmp' })
  want(got.stdout === 'word more\n/tmp\n', got)
})
await test('executeCommand: a command that fails', async () => {
  const got = await box.executeCommand('sh', ['-c', 'echo err >&2; exit 4'])
  want(!got.success && got.exitCode === 4 && got.stderr.startsWith('err\n'), got)
})
const TWICE = 'the tool adds the output that it has streamed to the result again'
await expectedToFail('executeCommand: output of a command that fails, once', TWICE, async () => {
  const got = await box.executeCommand('sh', ['-c', 'echo err >&2; exit 4'])
  want(got.stderr === 'err\n', got)
})
await test('executeCommand: output is streamed', async () => {
  let out = ''
  await box.executeCommand('sh', ['-c', 'echo 1; sleep 0.2; echo 2'], { onStdout: (data) => { out += data } })
  want(out === '1\n2\n', out)
})
await test('executeCommand: a command that takes too long', async () => {
  let got
  try { got = await box.executeCommand('sleep', ['600'], { timeout: 3000 }) } catch (e) { got = { success: false, error: e.name } }
  want(!got.success, got)
})
await test('writeFiles', async () => {
  const bytes = Buffer.from([0, 255, 195, 40])
  await box.writeFiles([{ path: '/home/user/mastra/a.txt', content: 'text' }, { path: '/home/user/mastra/b', content: bytes }])
  const got = await box.executeCommand('sh', ['-c', 'cd /home/user/mastra; cat a.txt; od -An -tu1 b'])
  want(got.stdout.replace(/\s+/g, ' ') === 'text 0 255 195 40 ', got)
})
await test('processes: standard input', async () => {
  const process = await box.processes.spawn('head -c 3')
  await process.sendStdin('abc')
  const got = await process.wait()
  want(got.exitCode === 0 && process.stdout === 'abc', got)
})
await test('processes: list, get, kill', async () => {
  const process = await box.processes.spawn('exec sleep 600')
  want((await box.processes.list()).some((p) => p.pid === process.pid && p.running), 'list')
  want((await box.processes.get(process.pid)).pid === process.pid, 'get')
  want(await box.processes.kill(process.pid), 'kill')
  want((await process.wait()).exitCode !== 0, 'it has succeeded')
})
await test('networking: a server in the sandbox', async () => {
  await box.processes.spawn(`cd /home/user/mastra && exec python3 -m http.server ${PORT}`)
  const url = await box.networking.getPortUrl(PORT)
  let got
  for (let n = 0; n < 300; n++) {
    got = await fetch(`${url}/a.txt`)
    if (got.status !== 502) break
    await new Promise((done) => setTimeout(done, 500))
  }
  want(await got.text() === 'text', url)
})
await test('getInfo', async () => {
  const got = await box.getInfo()
  want(got.id === ID && got.provider === 'e2b' && got.status === 'running', got)
})
await test('getInstructions', async () => want(box.getInstructions().includes('sandbox'), box.getInstructions()))
let id
await test('stop: the sandbox is paused', async () => {
  id = box.e2b.sandboxId
  await box.stop()
  want((await Sandbox.getInfo(id)).state === 'paused', 'state')
})
await test('start: the paused sandbox is found by its id', async () => {
  box = new E2BSandbox(options)
  await box.start()
  want(box.e2b.sandboxId === id, box.e2b.sandboxId)
  want((await box.executeCommand('cat', ['/home/user/mastra/a.txt'])).stdout === 'text', 'content')
})
await test('clone', async () => {
  const other = box.clone({ id: `${ID}-clone` })
  await other.start()
  want(other.e2b.sandboxId !== id && (await other.executeCommand('echo', ['clone'])).stdout === 'clone\n', 'clone')
  await other.destroy()
})
await test('destroy', async () => { await box.destroy(); want(!(await Sandbox.list().nextItems()).some((s) => s.sandboxId === id), 'it lives') })
