package rootcert

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"
)

// A client that trusts an authority trusts the certificates that the authority has signed. It does
// not trust a certificate with a name outside the authority's name constraints.
func TestAuthoritySigns(t *testing.T) {
	now := time.Now()
	ca, key, err := New(&x509.Certificate{Subject: pkix.Name{CommonName: "ours"},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"ours.test"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(PEM(ca.Raw)) {
		t.Fatal("it is no PEM")
	}
	sign := func(name string) *x509.Certificate {
		k, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: Serial(), NotBefore: now.AddDate(0, 0, -1), NotAfter: now.AddDate(0, 1, 0),
			DNSNames: []string{name}}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &k.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := KeyPEM(k)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(PEM(der), secret); err != nil {
			t.Error(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	if _, err := sign("a.ours.test").Verify(x509.VerifyOptions{Roots: roots, DNSName: "a.ours.test"}); err != nil {
		t.Errorf("what it signed: %v", err)
	}
	if _, err := sign("a.other.test").Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("it signed for a name that it may not sign for")
	}
	if !ca.MaxPathLenZero || !ca.NotAfter.After(now.AddDate(Years, 0, -2)) || ca.NotBefore.After(now) {
		t.Errorf("%+v", ca)
	}
}
