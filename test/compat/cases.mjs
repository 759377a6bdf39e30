// What the groups that are written in JavaScript use; npm.py copies it beside their run.mjs and reads what it prints.
export const want = (ok, what) => { if (!ok) throw new Error(`not as it should be: ${JSON.stringify(what)}`) }

export async function test(covers, run) {
  const began = Date.now()
  let outcome = 'passed', reason
  try { await run() } catch (e) { outcome = 'failed'; reason = `${e.name}: ${e.message}` }
  console.log(JSON.stringify({ name: covers, outcome, reason, seconds: (Date.now() - began) / 1000 }))
}

export async function fails(name, call) {
  try { await call() } catch (e) { want(e.name === name, `${e.name}: ${e.message}`); return }
  throw new Error(`no ${name}`)
}

// A case of its own: every public method of a class was used.
export function recorded(cls) {
  const used = new Set()
  const names = Object.getOwnPropertyNames(cls.prototype).filter((n) => n !== 'constructor' && !n.startsWith('_'))
  const methods = names.filter((n) => typeof Object.getOwnPropertyDescriptor(cls.prototype, n).value === 'function')
  for (const name of methods) {
    const method = cls.prototype[name]
    cls.prototype[name] = function (...args) { used.add(name); return method.apply(this, args) }
  }
  return () => want(methods.length && methods.every((n) => used.has(n)), methods.filter((n) => !used.has(n)))
}
