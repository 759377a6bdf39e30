// The cases in JavaScript. run.py starts this program and reads a line of JSON for each.
import fs from 'node:fs'
import http2 from 'node:http2'
import os from 'node:os'
import path from 'node:path'
import { Sandbox, Template, waitForFile } from 'e2b'

const want = (ok, what) => { if (!ok) throw new Error(`not as it should be: ${JSON.stringify(what)}`) }

async function test(name, run) {
  const began = Date.now()
  let outcome = 'passed', reason = null
  try { await run() } catch (e) { outcome = 'failed'; reason = `${e.name}: ${e.message} ${e.cause ?? ''}` }
  console.log('case ' + JSON.stringify({ name, outcome, reason, seconds: (Date.now() - began) / 1000 }))
}

const s = await Sandbox.create({ timeoutMs: 600_000 })
const host = s.getHost(49983)
fs.appendFileSync('/etc/hosts', `127.0.0.1 ${host.split(':')[0]}\n`)

await test('JavaScript: files, signed URL', async () => {
  const path = `/tmp/e2b-tls-${s.sandboxId}`
  await s.files.write(path, 'hello')
  want(await s.files.read(path) === 'hello', 'read')
  const url = await s.downloadUrl(path, { useSignatureExpiration: 600 })
  want(url.startsWith(`https://49983-${s.sandboxId}.${process.env.E2B_DOMAIN}`), url)
  want(await (await fetch(url)).text() === 'hello', url)
  await s.files.remove(path)
})
await test('JavaScript: streams at once', async () => {
  const many = await Promise.all([...Array(20).keys()].map((n) => s.commands.run(`echo ${n}`)))
  want(many.every((m, n) => m.stdout === `${n}\n`), many)
})
await test('JavaScript: a terminal', async () => {
  let out = ''
  const h = await s.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) } })
  await s.pty.sendInput(h.pid, new TextEncoder().encode('stty size; exit\n'))
  await h.wait()
  want(out.includes('24 80'), out)
})
await test('HTTP/2 by the host name of a port', async () => {
  const session = http2.connect(`https://${host}`, { ca: fs.readFileSync(process.env.NODE_EXTRA_CA_CERTS) })
  const status = await new Promise((done, fail) => {
    session.on('error', fail)
    session.request({ ':path': '/health' }).on('response', (h) => done(h[':status'])).end()
  })
  session.close()
  want(status === 204, status)
})
await test('JavaScript: Template.build', async () => { // its steps have the file system of this host
  const there = fs.mkdtempSync(path.join(os.tmpdir(), 'made'))
  fs.mkdirSync(`${there}/context/src`, { recursive: true })
  fs.writeFileSync(`${there}/context/src/one`, 'one\n')
  const template = Template({ fileContextPath: `${there}/context` }).fromTemplate('base')
    .setEnvs({ HOME: '/nonexistent', WORD: 'given' }).setWorkdir(`${there}/app`).copy('src', 'copied').runCmd('echo $WORD; cat copied/one')
    .setStartCmd('touch up; sleep 30', waitForFile('up'))
  let text = ''
  const info = await Template.build(template, 'made-js', { onBuildLogs: (e) => { text += e.message + '\n' } })
  fs.rmSync(there, { recursive: true })
  want(text.includes('given\none\n') && info.templateId === 'made-js' && await Template.exists('made-js'), text)
  want(!(await Template.exists('no-such')), 'exists')
  try { await Template.build(Template().fromTemplate('base').runCmd('exit 9'), 'made-js'); want(false, 'no error') } catch (e) {
    want(e.name === 'BuildError' && e.message.includes('exit status 9'), `${e.name}: ${e.message}`)
  }
})
await test('JavaScript: kill', async () => { await s.kill(); want(!(await s.isRunning()), 'kill') })
