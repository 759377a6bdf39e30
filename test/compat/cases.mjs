// The common parts of groups that are written in JavaScript. npm.py copies this file next to their run.mjs
// and reads its output.
export const want = (ok, what) => { if (!ok) throw new Error(`not as it should be: ${JSON.stringify(what)}`) }

export class NotApplicable extends Error {}

export const AGE = process.env.COMPAT_AGE // the month of the packages, if they are not the newest

// Ends the case that calls it, as not applicable, if an older package has no such method. The
// newest package must have the method.
export function offers(cls, method) {
  if (AGE && !cls.prototype[method]) throw new NotApplicable(`the package of ${AGE} has no ${cls.name}.${method}`)
}

export async function test(covers, run) {
  const began = Date.now()
  let outcome = 'passed', reason
  try { await run() } catch (e) {
    const applies = !(e instanceof NotApplicable)
    outcome = applies ? 'failed' : 'not_applicable'
    reason = applies ? `${e.name}: ${e.message}` : e.message
  }
  console.log(JSON.stringify({ name: covers, outcome, reason, seconds: (Date.now() - began) / 1000 }))
}

// A case that fails as long as its tool does not change, for the reason given. If it passes, the
// case fails.
export async function expectedToFail(covers, reason, run) {
  const began = Date.now()
  let failed = false
  try { await run() } catch { failed = true }
  console.log(JSON.stringify({ name: covers, outcome: failed ? 'not_applicable' : 'failed',
    reason: failed ? reason : `it passes now, although it should fail: ${reason}`, seconds: (Date.now() - began) / 1000 }))
}

export async function fails(name, call) {
  try { await call() } catch (e) { want(e.name === name, `${e.name}: ${e.message}`); return }
  throw new Error(`no ${name}`)
}

// A case of its own: the tests have used every public method of a class.
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
