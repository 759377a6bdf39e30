// The cases of the group code-interpreter-js. run.py starts this program and reads a line of JSON
// for each.
import { Sandbox } from '@e2b/code-interpreter'
import { fails, offers, recorded, test, want } from './cases.mjs'

const TAG = process.env.COMPAT_INTERPRETER_TAG
const SLOW = { timeoutMs: 300_000, requestTimeoutMs: 300_000 } // an emulated host is slow
const allUsed = recorded(Sandbox)
const s = await Sandbox.create(TAG, { timeoutMs: 3_600_000, envs: { GIVEN: 'at create' } })
const run = (code, opts) => s.runCode(code, { ...SLOW, ...opts })

await test('runCode', async () => {
  await run('x = 20')
  const got = await run("print('out'); x + 1")
  want(got.text === '21' && got.logs.stdout.join('') === 'out\n' && !got.error, got)
  want((await run("'text'")).text === 'text', 'a text without its quotes')
})
await test('runCode, errors', async () => {
  const { error } = await run('def f(): return 1/0\nf()')
  want(error.name === 'ZeroDivisionError' && error.value === 'division by zero' && error.traceback.includes('1/0'), error)
  want((await run('1 +')).error.name === 'SyntaxError', 'a syntax error')
})
await test('runCode, callbacks', async () => {
  const out = [], err = [], results = [], errors = []
  await run("import sys; print('a'); print('b', file=sys.stderr); 7", {
    onStdout: (m) => out.push(m.line), onStderr: (m) => err.push(m.line), onResult: (r) => results.push(r)
  })
  want(out.join('') === 'a\n' && err.join('') === 'b\n' && results[0].text === '7', { out, err, results })
  await run('missing', { onError: (e) => errors.push(e) })
  want(errors.length === 1 && errors[0].name === 'NameError', errors)
})
await test('runCode, data frames', async () => {
  const [frame] = (await run("import pandas as pd; pd.DataFrame({'a': [1, 2], 'b': ['x', None]})")).results
  want(frame.data.a.join() === '1,2' && frame.data.b[0] === 'x' && frame.html.includes('<table'), frame)
})
await test('runCode, charts', async () => {
  const got = await run("import matplotlib.pyplot as plt\nplt.bar(['A', 'B'], [3, 5])\nplt.title('T')\nplt.show()")
  const [shown] = got.results
  want(shown.png && shown.chart.type === 'bar' && shown.chart.title === 'T' && shown.chart.elements[1].value === 5, got)
})
await test('runCode, environment', async () => {
  want((await run("import os; os.environ['ONCE']", { envs: { ONCE: '1' } })).text === '1', 'given')
  want((await run("os.environ.get('ONCE', 'gone')")).text === 'gone', 'it stayed')
  want((await run("os.environ['GIVEN']")).text === 'at create', "the sandbox's")
})
await test('runCode, JavaScript', async () => {
  const js = (code, opts) => run(code, { language: 'js', ...opts })
  want((await js("console.log('Hello World!')")).logs.stdout.join('') === 'Hello World!\n', 'console')
  want((await js("\n    import { readFileSync } from 'fs'\n    console.log(typeof readFileSync)")).logs.stdout.join('') === 'function\n', 'import')
  want((await js("await Promise.resolve('late')")).text === 'late', 'await')
  await js('const kept = { n: 41 }')
  want((await js('kept.n + 1')).text === '42' && (await js('null.x')).error.name === 'TypeError', 'state')
  want((await js("process.env.ONCE ?? 'gone'", { envs: { ONCE: '1' } })).text === '1', 'environment')
  want((await js("process.env.ONCE ?? process.env.GIVEN")).text === 'at create', 'environment')
})
await test('runCode, TypeScript', async () => {
  const got = await run('const message: string = "Hello World!"; console.log(message)', { language: 'ts' })
  want(got.logs.stdout.join('') === 'Hello World!\n' && !got.error, got)
  want((await run('enum E { A = 3 }\nE.A as number', { language: 'typescript' })).text === '3', 'enum')
})
await test('runCode, Bash', async () => {
  await run('y=5; cd /tmp', { language: 'bash' })
  const got = await run('echo $y; pwd; ls /nonexistent', { language: 'bash' })
  want(got.logs.stdout.join('') === '5\n/tmp\n' && got.logs.stderr.join('').includes('nonexistent') && got.error.value === '2', got)
})
await test('runCode, a language that is not there', async () => {
  await fails('SandboxError', () => run('1', { language: 'cobol' }))
})
await test('runCode, a client that leaves', async () => {
  await run('import time; kept = 1')
  await fails('TimeoutError', () => s.runCode('time.sleep(1000)', { timeoutMs: 3_000 }))
  want((await run('kept')).text === '1', 'the state')
})
await test('createCodeContext listCodeContexts restartCodeContext removeCodeContext', async () => {
  const languages = (await s.listCodeContexts()).map((c) => c.language)
  want(languages.includes('python') && languages.includes('javascript'), languages)
  const c = await s.createCodeContext({ cwd: '/tmp', ...SLOW })
  want((await run('import os; y = 1; os.getcwd()', { context: c })).text === '/tmp', 'cwd')
  want((await run('y')).error?.name === 'NameError', 'contexts share names')
  await s.restartCodeContext(c, SLOW)
  want((await run('y', { context: c })).error.name === 'NameError', 'not restarted')
  await s.removeCodeContext(c)
  want(!(await s.listCodeContexts()).some((k) => k.id === c.id), 'still listed')
})
await test('createCodeContext, JavaScript', async () => {
  const js = await s.createCodeContext({ language: 'javascript', ...SLOW })
  want(js.language === 'javascript' && (await run('6 * 7', { context: js })).text === '42', js)
})
await test('fork keeps what was computed', async () => {
  offers(Sandbox, 'fork')
  await run('memory = [1, 2]')
  const [copy] = await s.fork()
  want((await copy.runCode('memory.append(3); memory', SLOW)).text === '[1, 2, 3]', 'its memory')
  want((await run('memory')).text === '[1, 2]', 'shared memory')
  await copy.kill()
})
await test("fork keeps JavaScript's memory, but for random numbers", async () => {
  offers(Sandbox, 'fork')
  const [copy] = await s.fork()
  want((await copy.runCode('kept.n', { language: 'js', ...SLOW })).text === '41', "its memory")
  const draw = 'require("crypto").randomUUID() + Math.random()'
  want((await copy.runCode(draw, { language: 'js', ...SLOW })).text !== (await run(draw, { language: 'js' })).text, 'the same numbers')
  await copy.kill()
})
await test('every public method of Sandbox is covered', async () => allUsed())
await s.kill()
process.exit() // for each code that the server refuses, the SDK leaves a timer of requestTimeoutMs
