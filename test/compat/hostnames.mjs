// Resolves host names of sandboxes, in $E2B_DOMAIN of hostnames.py, to this host. Use: node --import.
import dns from 'node:dns'

const domain = '.' + (process.env.E2B_DOMAIN ?? '').split(':')[0]
const lookup = dns.lookup
dns.lookup = (host, ...rest) => lookup(host.endsWith(domain) ? '127.0.0.1' : host, ...rest)
