package hub

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
	"golang.org/x/net/idna"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
	"github.com/forkd/forkd/internal/sigstore"
)

// Policy says what happens to a snapshot from outside that no trusted key has signed.
type Policy string

// The policies. An empty Policy in a request stands for the daemon's policy.
const (
	Require Policy = "require" // the snapshot is refused
	Warn    Policy = "warn"    // the snapshot is accepted, and the answer and the log say why it is not trusted
	Off     Policy = "off"     // the snapshot is accepted, and signatures are not looked at
)

// TrustField is the field of a request that ParsePolicy checks.
const TrustField = "trust"

// ParsePolicy parses the policy of a request.
func ParsePolicy(text string) (Policy, error) {
	switch p := Policy(text); p {
	case "", Require, Warn, Off:
		return p, nil
	}
	return Require, invalid.Errorf(TrustField, "%.20q: want %s, %s or %s", text, Require, Warn, Off)
}

// ArchiveSource is the source of all archives.
const ArchiveSource = "archive"

// Trust decides which snapshots from outside are accepted. The zero value requires a signature, and trusts no
// key.
type Trust struct {
	Keys  string // directory of the trusted public keys, in files NAME.pub; empty or missing: no key is trusted
	rules map[string]Policy
}

// ParseTrust parses rules of the form SOURCE=POLICY. A source is a registry, the beginning of a repository's name
// (such as ghcr.io/owner), or ArchiveSource. A rule without a source applies to all other sources.
func ParseTrust(keys string, rules []string) (Trust, error) {
	t := Trust{Keys: keys, rules: make(map[string]Policy)}
	for _, text := range rules {
		source, policy, ok := strings.Cut(text, "=")
		if !ok {
			source, policy = "", text
		}
		p, err := ParsePolicy(policy)
		if err != nil || p == "" {
			return t, fmt.Errorf("%.200q: want SOURCE=POLICY or POLICY, and the policy %s, %s or %s", text, Require, Warn, Off)
		}
		if ok {
			if source, err = sourceOf(source); err != nil {
				return t, err
			}
		}
		if old, ok := t.rules[source]; ok && old != p {
			return t, fmt.Errorf("%.200q: there is another rule for this source", text)
		}
		t.rules[source] = p
	}
	return t, nil
}

// sourceOf returns the canonical name of a source.
func sourceOf(text string) (string, error) {
	if text == ArchiveSource {
		return text, nil
	}
	host, path, deeper := strings.Cut(text, "/")
	if _, err := registry.Name(host); err != nil {
		return "", err
	}
	r, err := name.NewRegistry(host)
	if err != nil {
		return "", err
	}
	host = canonical(r)
	if !deeper {
		return host, nil
	}
	if !repoPattern.MatchString(path) {
		return "", fmt.Errorf("%.200q is not the beginning of a repository's name, such as ghcr.io/owner", text)
	}
	return host + "/" + path, nil
}

// canonical returns the spelling of a registry's name that rules are compared with. Different
// spellings lead to the same server: in DNS, case and a final dot have no meaning, HTTP clients map
// letters beyond ASCII, 443 is the default port, and Docker Hub has several names. A name without a
// dot is only converted to lower case, so that a registry cannot become ArchiveSource.
func canonical(r name.Registry) string {
	text := strings.ToLower(r.RegistryStr())
	u := url.URL{Host: text}
	host, port := u.Hostname(), u.Port()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	host = strings.TrimSuffix(host, ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	if !strings.ContainsAny(host, ".:") {
		return text
	}
	switch host {
	case "docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		host = name.DefaultRegistry
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err == nil && (n != 443 || r.Scheme() != "https"):
		return net.JoinHostPort(host, strconv.FormatUint(n, 10))
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	}
	return host
}

// policy returns the policy for a source. Of all rules that apply to the source, the rule with the
// longest source decides.
func (t *Trust) policy(source string) Policy {
	for {
		if p, ok := t.rules[source]; ok {
			return p
		}
		if source == "" {
			return Require
		}
		source = source[:max(strings.LastIndexByte(source, '/'), 0)]
	}
}

// source returns the source of the snapshots in r's repository, in the form of sourceOf.
func (r Remote) source() string {
	repo := r.ref.Context()
	return canonical(repo.Registry) + "/" + repo.RepositoryStr()
}

// TrustKind says why a snapshot is not trusted.
type TrustKind int

// The kinds of a TrustError.
const (
	Unsigned TrustKind = iota // the snapshot has no signature
	Unknown                   // no trusted key has signed the snapshot
	Bad                       // the signatures are damaged, or for another digest
)

// TrustError reports that no trusted key vouches for a snapshot.
type TrustError struct {
	Kind   TrustKind
	Source string
	Reason string
}

func (e *TrustError) Error() string { return e.Source + ": " + e.Reason }

// Verdict is the result of a check of signatures.
type Verdict struct {
	// The trusted key that has signed the snapshot. Its PublicKey is nil if no such key was found, or
	// if the signatures were not checked.
	Key     sigstore.TrustedKey
	Problem error // a *TrustError, if no such key was found and the policy accepts this
}

// judge returns the verdict on a snapshot with the given digest. The bundles are the result of
// fetch(), which is not called if the policy is Off. If the policy refuses the snapshot, the error
// is a *TrustError.
func (h *Hub) judge(policy Policy, source string, d digest.Digest, fetch func() ([]proof, error)) (
	v Verdict, err error) {
	policy = cmp.Or(policy, h.cfg.Trust.policy(source))
	if policy == Off {
		return v, nil
	}
	v.Key, err = h.vouched(source, d, fetch)
	if refused := (*TrustError)(nil); policy == Warn && errors.As(err, &refused) {
		v.Problem, err = err, nil
	}
	return v, err
}

// warn logs that a snapshot is accepted even though no trusted key has signed it.
func (h *Hub) warn(v Verdict) {
	if v.Problem != nil {
		h.cfg.Log.Warn("a snapshot is taken without a trusted signature", "reason", v.Problem)
	}
}

// vouched returns the trusted key that has signed a digest. If no trusted key has signed it, the
// error is a *TrustError.
func (h *Hub) vouched(source string, d digest.Digest, fetch func() ([]proof, error)) (
	k sigstore.TrustedKey, err error) {
	keys, err := sigstore.ReadKeys(h.cfg.Trust.Keys)
	if err != nil {
		return k, &TrustError{Unknown, source, "the trusted keys cannot be used: " + err.Error()}
	}
	proofs, err := fetch()
	if err != nil {
		return k, err
	}
	return verify(source, d, proofs, keys)
}

// proof is a bundle, or the reason why a bundle cannot be used.
type proof struct {
	referrer // for an archive, only the file is set
	err      error
}

// maxReasons is the maximum number of reasons that an error quotes.
const maxReasons = 3

// verify returns the key that has signed a digest. One good bundle is enough: if there is one,
// bundles of other keys and damaged bundles are ignored.
func verify(source string, d digest.Digest, proofs []proof, keys []sigstore.TrustedKey) (sigstore.TrustedKey, error) {
	if len(proofs) == 0 {
		return sigstore.TrustedKey{}, &TrustError{Unsigned, source, d.String() + " has no signature"}
	}
	public := make([]*sigstore.PublicKey, len(keys))
	for i, k := range keys {
		public[i] = k.PublicKey
	}
	kind, reasons := Bad, []string(nil)
	for _, p := range proofs {
		var signer *sigstore.PublicKey
		err := p.err
		if err == nil {
			signer, err = sigstore.Verify(p.file, d.String(), public)
		}
		if err == nil {
			for _, k := range keys {
				if k.PublicKey == signer {
					return k, nil
				}
			}
		}
		if unknown := (*sigstore.UnknownKeyError)(nil); errors.As(err, &unknown) {
			kind = Unknown
		}
		reasons = append(reasons, err.Error())
	}
	if kind == Unknown && len(keys) == 0 {
		return sigstore.TrustedKey{}, &TrustError{kind, source, d.String() + " is signed, but no key is trusted here"}
	}
	text := fmt.Sprintf("no trusted key vouches for %s: ", d)
	if more := len(reasons) - maxReasons; more > 0 {
		reasons = append(reasons[:maxReasons], fmt.Sprintf("and %d more", more))
	}
	text += strings.Join(reasons, "; ")
	return sigstore.TrustedKey{}, &TrustError{kind, source, text}
}
