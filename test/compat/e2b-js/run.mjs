// The cases of the group e2b-js. run.py starts this program and reads a line of JSON for each.
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { CommandExitError, Sandbox, Template, waitForFile } from 'e2b'
import { AGE, fails, offers, test, want } from './cases.mjs'

const TAG = process.env.COMPAT_TAG
const FROM = process.env.COMPAT_CONTRACT_TAG ?? TAG // the smaller parent, if there are two; each step of a build copies it
async function until(done) {
  for (let i = 0; i < 600 && !(await done()); i++) await new Promise((next) => setTimeout(next, 100))
  want(await done(), 'it did not come to be')
}

const s = await Sandbox.create(TAG, { timeoutMs: 600_000, metadata: { suite: 'compat-js', 'a b': 'c&d=é' }, envs: { GIVEN: 'x' } })

await test('Sandbox.create', async () => {
  await fails('SandboxError', () => Sandbox.create('no-such-template'))
  await fails('AuthenticationError', () => Sandbox.create(TAG, { apiKey: 'e2b_00' }))
})
await test('Sandbox.getInfo Sandbox.list', async () => {
  const info = await s.getInfo()
  want(info.templateId === TAG && info.metadata['a b'] === 'c&d=é' && info.state === 'running', info)
  const found = await Sandbox.list({ query: { metadata: { 'a b': 'c&d=é' } } }).nextItems()
  want(found.length === 1 && found[0].sandboxId === s.sandboxId, found)
  await fails('SandboxNotFoundError', () => Sandbox.getInfo('sb-none'))
})
await test('Sandbox.setTimeout Sandbox.connect Sandbox.isRunning', async () => {
  await s.setTimeout(900_000)
  const again = await Sandbox.connect(s.sandboxId, { timeoutMs: 2_000_000 })
  want((await again.commands.run('echo $GIVEN')).stdout === 'x\n', 'another sandbox')
  want(await s.isRunning(), 'it does not run')
})
await test('Commands.run', async () => {
  const got = await s.commands.run('echo out; echo err >&2; pwd', { cwd: '/tmp' })
  want(got.stdout === 'out\n/tmp\n' && got.stderr === 'err\n' && got.exitCode === 0, got)
  try { await s.commands.run('exit 7'); want(false, 'no error') } catch (e) { want(e instanceof CommandExitError && e.exitCode === 7, e.message) }
  await fails('TimeoutError', () => s.commands.run('sleep 60', { timeoutMs: 1000 }))
})
await test('Commands.list Commands.connect Commands.sendStdin Commands.closeStdin Commands.kill', async () => {
  const h = await s.commands.run('cat', { background: true, stdin: true })
  want((await s.commands.list()).some((p) => p.pid === h.pid), 'not listed')
  const other = await s.commands.connect(h.pid)
  await s.commands.sendStdin(h.pid, 'in')
  await s.commands.closeStdin(h.pid)
  want((await other.wait()).stdout === 'in', 'stdin')
  const slow = await s.commands.run('sleep 1000', { background: true })
  want(await s.commands.kill(slow.pid) && !(await s.commands.kill(2_000_000)), 'kill')
})
await test('Pty.create Pty.resize Pty.sendInput Pty.kill', async () => {
  let out = ''
  const h = await s.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) } })
  await s.pty.resize(h.pid, { cols: 100, rows: 40 })
  await s.pty.sendInput(h.pid, new TextEncoder().encode('stty size; exit\n'))
  await h.wait()
  want(out.includes('40 100'), out)
  want(!(await s.pty.kill(2_000_000)), 'kill')
})
await test('Filesystem.write Filesystem.writeFiles Filesystem.read Filesystem.list Filesystem.exists Filesystem.getInfo '
  + 'Filesystem.rename Filesystem.makeDir Filesystem.remove', async () => {
  await s.files.write('/tmp/js/a.txt', 'hello')
  want(await s.files.read('/tmp/js/a.txt') === 'hello', 'read')
  want((await s.files.read('/tmp/js/a.txt', { format: 'bytes' })).length === 5, 'bytes')
  await s.files.write([{ path: '/tmp/js/b', data: 'b' }, { path: '/tmp/js/c', data: 'c' }])
  await s.files.writeFiles([{ path: '/tmp/js/d', data: 'd' }])
  want((await s.files.list('/tmp/js')).map((e) => e.name).join() === 'a.txt,b,c,d', await s.files.list('/tmp/js'))
  want(await s.files.exists('/tmp/js/b') && !(await s.files.exists('/tmp/js/none')), 'exists')
  want((await s.files.rename('/tmp/js/b', '/tmp/js/e')).path === '/tmp/js/e', 'rename')
  want(await s.files.makeDir('/tmp/jsdir') && !(await s.files.makeDir('/tmp/jsdir')), 'makeDir')
  await s.files.remove('/tmp/js/c')
  want((await s.files.getInfo('/tmp/js/a.txt')).size === 5, 'getInfo')
  await fails('FileNotFoundError', () => s.files.read('/tmp/none'))
})
await test('Filesystem.watchDir', async () => {
  const seen = []
  const w = await s.files.watchDir('/tmp/jsdir', (e) => { seen.push(e.name) })
  await s.files.write('/tmp/jsdir/new', 'x')
  await until(() => seen.includes('new'))
  await w.stop()
})
await test('Sandbox.downloadUrl Sandbox.uploadUrl', async () => {
  const url = await s.downloadUrl('/tmp/js/a.txt', { useSignatureExpiration: 600 })
  want(await (await fetch(url)).text() === 'hello', url)
  want((await fetch((await s.downloadUrl('/tmp/js/a.txt')) + '0')).status === 401, 'a forged signature was taken')
  want((await s.uploadUrl('/tmp/up')).includes('signature='), 'uploadUrl')
})
await test('Sandbox.getMetrics', async () => { want((await s.getMetrics())[0].memTotal > 0, 'metrics') })
await test('Sandbox.updateNetwork', async () => {
  offers(Sandbox, 'updateNetwork')
  await s.updateNetwork({ denyOut: ['0.0.0.0/0'] })
})
await test('Sandbox.getHost Sandbox.getMcpUrl', async () => { want(s.getHost(80).startsWith('80-sb-') && s.getMcpUrl(), s.getHost(80)) })
await test('Sandbox.fork', async () => {
  offers(Sandbox, 'fork')
  const copies = await s.fork({ count: 2 })
  want(copies.length === 2 && await copies[0].files.read('/tmp/js/a.txt') === 'hello', 'its disk')
  for (const copy of copies) await copy.kill()
})
await test('Sandbox.createSnapshot Sandbox.listSnapshots Sandbox.deleteSnapshot', async () => {
  const snap = await s.createSnapshot()
  want((await s.listSnapshots().nextItems()).some((i) => i.snapshotId === snap.snapshotId), 'not listed')
  want(await Sandbox.deleteSnapshot(snap.snapshotId) && !(await Sandbox.deleteSnapshot(snap.snapshotId)), 'delete')
})
await test('Sandbox.pause', async () => {
  want(await s.pause() && !(await s.isRunning()), 'pause')
  await s.connect()
  want(await s.files.read('/tmp/js/a.txt') === 'hello', 'its disk')
})
await test('Template.build Template.exists Template.getTags', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'compat'))
  fs.writeFileSync(`${context}/page`, 'hello\n')
  const template = Template({ fileContextPath: context }).fromTemplate(FROM).skipCache().setEnvs({ WORD: 'given' }).setWorkdir('app')
    .copy('page', 'in/page', { mode: 0o600 }).runCmd('echo $WORD; pwd; stat -c "%U %a" in/page')
    .setStartCmd('touch up; exec sleep infinity', waitForFile('up'))
  let text = ''
  const info = await Template.build(template, 'compat-js-built', { onBuildLogs: (e) => { text += e.message + '\n' } })
  want(text.includes('given\n/home/user/app\nuser 600\n') && info.templateId === 'compat-js-built', text)
  want(await Template.exists('compat-js-built') && !(await Template.exists('no-such')), 'exists')
  want((await Template.getTags('compat-js-built')).length === 1, 'tags')
  const child = await Sandbox.create('compat-js-built')
  want((await child.commands.run('pwd; cat in/page; grep -qx sleep /proc/[0-9]*/comm && echo runs')).stdout === '/home/user/app\nhello\nruns\n', 'its state')
  await child.kill()
  await fails('BuildError', () => Template.build(Template().fromTemplate(FROM).runCmd('exit 9'), 'compat-js-built'))
  want(await Sandbox.deleteSnapshot('compat-js-built'), 'delete')
})
await test('Sandbox.kill', async () => {
  const killed = await s.kill() // older packages return nothing
  want(killed === (AGE ? undefined : true) && !(await Sandbox.kill(s.sandboxId)) && !(await s.isRunning()), 'kill')
})
