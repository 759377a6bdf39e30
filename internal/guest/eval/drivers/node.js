// The driver of Node.js. It keeps to drivers/wire.py but for this: nothing reads the control socket, so that the driver is
// told of forks and of lasting variables with the next call, in "late". Its arguments are the language: javascript or
// typescript.
//
// Code runs in this process as lines of Node's own REPL do (an await at the top level, names that stay); an import
// statement becomes a call of import(). An interrupt ends code that does not wait at once. What waits is left behind.
const childProcess = require('child_process')
const crypto = require('crypto')
const fs = require('fs')
const net = require('net')
const repl = require('repl')
const stream = require('stream')
const util = require('util')
const vm = require('vm')

const CODE = 3
const CONTROL = 4
const MAX_TEXT = 1 << 20 // characters of a text
const INTERRUPTED = 'ERR_SCRIPT_EXECUTION_INTERRUPTED'
let interrupt = () => {} // ends the call that waits
let uncaught = report // takes an error that nobody has caught

const socket = new net.Socket({ fd: CODE })

function send (line) {
  return new Promise((resolve) => socket.write(line + '\n', resolve))
}

const pause = new Int32Array(new SharedArrayBuffer(4))

// Makes a stream write at once and keep nothing: an interrupt can end code in the middle of a write, and a stream of
// Node's would wait for the end of that forever.
function unbuffered (stream, fd) {
  stream.write = (text, encoding, callback) => {
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding]
    const data = typeof text === 'string' ? Buffer.from(text, encoding) : text
    for (let sent = 0; sent < data.length;) {
      try {
        sent += fs.writeSync(fd, data, sent)
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error
        Atomics.wait(pause, 0, 0, 1) // the pipe is full
      }
    }
    if (callback) process.nextTick(callback)
    return true
  }
}

function report (error) {
  process.stderr.write(`Uncaught ${util.inspect(error)}\n`)
}

function cut (text) {
  const rest = text.length - MAX_TEXT
  return rest <= 0 ? text : `${text.slice(0, MAX_TEXT)}… (${rest} more characters)`
}

// ---- languages ------------------------------------------------------------------------------------------------------

// Returns what makes JavaScript of TypeScript: Node's own means, from 22.13 on, or the program esbuild.
function typeStripper () {
  const strip = require('module').stripTypeScriptTypes
  if (strip) {
    const warn = process.emitWarning
    process.emitWarning = () => {} // that this is experimental, once
    try { strip('') } finally { process.emitWarning = warn }
    return (code) => strip(code, { mode: 'transform' })
  }
  if (childProcess.spawnSync('esbuild', ['--version']).status !== 0) return null
  return (code) => {
    const done = childProcess.spawnSync('esbuild', ['--loader=ts', '--log-limit=1'], { input: code, encoding: 'utf8' })
    if (done.status !== 0) throw new SyntaxError(done.stderr.trim())
    return done.stdout
  }
}

// import a, { b as c } from "d": the groups are the default, the namespace, the names, the quote and the module.
const IMPORT = /^[ \t]*import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s+|\{([^}]*)\}\s*)?(?:from\s*)?(['"])([^'"\n]+)\4[ \t]*;?/gm

function withoutImports (code) {
  return code.replace(IMPORT, (_, standard, all, names, quote, from) => {
    const module = `await import(${quote}${from}${quote});`
    const parts = (names || '').split(',').map((n) => n.trim().replace(/\s+as\s+/, ': ')).filter(Boolean)
    if (standard) parts.unshift(`default: ${standard}`)
    return (all ? `const ${all} = ${module} ` : '') + (parts.length ? `const { ${parts.join(', ')} } = ${module}` : all ? '' : module)
  })
}

// ---- a fork ---------------------------------------------------------------------------------------------------------

// After a fork the random numbers of programs come from the kernel: those of V8 and of the OpenSSL in Node have a state in
// the memory of this process, which siblings share and nobody can reseed.
function reseed () {
  const kernel = fs.openSync('/dev/urandom', 'r')
  const fill = (view) => {
    const bytes = new Uint8Array(view.buffer || view, view.byteOffset || 0, view.byteLength)
    for (let got = 0; got < bytes.length;) got += fs.readSync(kernel, bytes, got, bytes.length - got)
    return view
  }
  const bytes = (n) => fill(Buffer.alloc(n))
  const later = (call, callback) => { // as the functions of crypto that take a callback
    if (!callback) return call()
    const value = call()
    process.nextTick(callback, null, value)
  }
  const fraction = () => bytes(8).readBigUInt64LE() >> 11n
  Math.random = () => Number(fraction()) / 2 ** 53
  crypto.randomBytes = crypto.pseudoRandomBytes = (n, callback) => later(() => bytes(n), callback)
  crypto.randomFillSync = (view, from = 0, size) => {
    const part = new Uint8Array(view.buffer || view, view.byteOffset || 0, view.byteLength)
    fill(part.subarray(from, size === undefined ? undefined : from + size))
    return view
  }
  crypto.randomFill = (view, ...rest) => later(() => crypto.randomFillSync(view, ...rest.slice(0, -1)), rest.at(-1))
  crypto.randomInt = (low, high, callback) => {
    if (typeof high !== 'number') [low, high, callback] = [0, low, high]
    return later(() => low + Number(bytes(16).readBigUInt64LE() % BigInt(high - low)), callback)
  }
  crypto.randomUUID = () => {
    const b = bytes(16)
    b[6] = (b[6] & 0x0f) | 0x40
    b[8] = (b[8] & 0x3f) | 0x80
    return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  }
  // The functions of the same names in the module and, from Node 19 on, the global crypto are these.
  Object.defineProperty(crypto.webcrypto, 'getRandomValues', { value: fill, configurable: true })
  Object.defineProperty(crypto.webcrypto, 'randomUUID', { value: crypto.randomUUID, configurable: true })
  reseed = () => {} // the kernel's numbers differ after every further fork
}

// ---- calls ----------------------------------------------------------------------------------------------------------

// Node's REPL, for what only it can compile. Nothing is typed into it.
const server = repl.start({
  prompt: '', input: new stream.PassThrough(), output: process.stderr, terminal: false, useGlobal: true
})

// Returns the script, or null where the code waits at its top level.
function compile (code, name) {
  const options = { filename: name, importModuleDynamically: importer }
  if (/^\s*\{[^]*[^;\s]\s*$/.test(code)) { // rather an object than a block
    try { return new vm.Script(`(${code.trim()})`, options) } catch {}
  }
  try {
    return new vm.Script(code, options)
  } catch (error) {
    if (/\bawait\b|reserved word/.test(error.message)) return null
    throw error
  }
}

async function evaluate (code, name) {
  let script
  try {
    script = compile(code, name)
  } catch (error) {
    if (!/import statement/.test(error.message)) throw error
    code = withoutImports(code)
    script = compile(code, name)
  }
  if (script) return script.runInThisContext({ breakOnSigint: true, displayErrors: false })
  return new Promise((resolve, reject) => {
    interrupt = () => reject(Object.assign(new Error('interrupted'), { code: INTERRUPTED }))
    const fail = (error) => reject(error instanceof repl.Recoverable ? error.err : error)
    uncaught = fail
    server.eval(code + '\n', server.context, name, (error, value) => error ? fail(error) : resolve(value))
  })
}

// The frames of an error's stack but for those of the driver, which say nothing to the user.
function ownFrames (error) {
  const lines = String(error.stack).split('\n')
  const end = lines.findIndex((line) => /^ {4}at .*(forkd-driver|node:vm|node:repl|node:domain)/.test(line))
  return lines.slice(0, end < 0 ? lines.length : end).join('\n')
}

function failure (error) {
  try {
    const isError = error instanceof Error || util.types.isNativeError(error)
    if (isError && error.code === INTERRUPTED) return { name: 'KeyboardInterrupt', value: '', traceback: '' }
    const value = isError ? String(error.message) : util.inspect(error)
    return { name: isError ? String(error.name) : 'Error', value: cut(value), traceback: cut(isError ? ownFrames(error) : value) }
  } catch { // what describes it throws too
    return { name: 'Error', value: '<an error without a message>', traceback: '' }
  }
}

async function run (request, strip) {
  const say = (message) => send(`M${request.id} ${JSON.stringify(message)}`)
  if (request.late) {
    Object.assign(process.env, request.late.env)
    if (request.late.op === 'forked') reseed()
  }
  const before = Object.keys(request.env || {}).map((name) => [name, process.env[name]])
  Object.assign(process.env, request.env)
  try {
    const value = await evaluate(strip(request.code), `cell-${request.id}.js`)
    if (value !== undefined) {
      const text = typeof value === 'string' && !request.repr ? value : util.inspect(value)
      await say({ type: 'result', is_main_result: true, text: cut(text) })
    }
  } catch (error) {
    await say({ type: 'error', ...failure(error) })
  }
  interrupt = () => {}
  uncaught = report
  for (const [name, value] of before) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
  await send(`D${request.id}`)
}

async function serve (language) {
  const strip = language === 'typescript' ? typeStripper() : (code) => code
  if (!strip) {
    await send('M0 ' + JSON.stringify({ type: 'unsupported', text: 'needs Node.js 22.13 or the program esbuild in the guest' }))
    return process.exit(0)
  }
  unbuffered(process.stdout, 1)
  unbuffered(process.stderr, 2)
  process.on('SIGINT', () => interrupt())
  process.on('uncaughtException', (error) => uncaught(error))
  if (server._domain) server._domain.removeAllListeners('error').on('error', (error) => uncaught(error))
  await send('M0 {"type":"ready"}')
  let rest = Buffer.alloc(0)
  for await (const part of socket) {
    rest = Buffer.concat([rest, part])
    for (let end; (end = rest.indexOf(10)) >= 0;) {
      const line = rest.subarray(0, end)
      rest = rest.subarray(end + 1)
      await run(JSON.parse(line), strip)
    }
  }
  process.exit(0)
}

fs.closeSync(CONTROL)
serve(process.argv.at(-1))
