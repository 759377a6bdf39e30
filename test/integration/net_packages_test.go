package integration_test

import (
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// Hosts of PyPI: the host of the index, and the host of the packages.
const (
	pypiLists = "pypi.org:443"
	pypiFiles = "files.pythonhosted.org:443"
)

// installLimit bounds an installation. On an emulated host it takes a minute or two.
const installLimit = 10 * time.Minute

// pipInstall installs a package without dependencies. Its options prevent pip's other requests and
// the compilation to bytecode, which take long on an emulated CPU.
const pipInstall = `PIP_BREAK_SYSTEM_PACKAGES=1 PIP_CERT=/root/roots.pem exec \
	pip install -q --no-deps --no-compile --no-cache-dir --disable-pip-version-check six`

// aptLine prints a line of the image's sources.list: the line of the suite with the smallest
// package lists.
const aptLine = `grep -m 1 -- -security /etc/apt/sources.list`

// aptPackage is a small package that needs no other package and starts no service.
const aptPackage = "xmltooling-schemas"

// aptInstall installs aptPackage. It accepts expired lists, because the mirror may be an old copy.
// It does not sync its writes.
const aptInstall = `set -e
` + aptLine + ` >/tmp/sources.list
apt="apt-get -q -o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=- -o Acquire::Languages=none
	-o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false -o Dpkg::Options::=--force-unsafe-io"
export DEBIAN_FRONTEND=noninteractive
$apt update
$apt install -y --no-install-recommends ` + aptPackage + `
dpkg --verify ` + aptPackage + `
dpkg-query -W -f '${Status}' ` + aptPackage

// TestPackagesInstall installs a package from PyPI with pip, and a package from Debian with apt.
// The child may connect only to the registries. The test fails if the registries cannot be reached.
func TestPackagesInstall(t *testing.T) {
	f := load(t)
	d := f.start(t)
	box := d.online(t, 1, client.Network{Mode: "none"})[0]
	mirror := mirrorOf(t, d.sh(t, box.ID, aptLine))
	rules := append(rulesFor(t, pypiLists), append(rulesFor(t, pypiFiles), rulesFor(t, mirror)...)...)
	if _, err := d.SetNetwork(d.ctx(t, quietLimit), box.ID, client.Network{Mode: "allow", Allow: rules}); err != nil {
		t.Fatal(err)
	}
	roots, err := os.Open(f.assets.Roots)
	if err != nil {
		t.Fatal(err)
	}
	defer roots.Close()
	if err := d.WriteFile(d.ctx(t, quietLimit), box.ID, "/root/roots.pem", roots); err != nil {
		t.Fatal(err)
	}
	d.install(t, box.ID, pipInstall)
	if got := d.value(t, box.ID, "__import__('six').__file__"); !strings.Contains(got, "/usr/local/lib/python") {
		t.Errorf("the package of PyPI is %s", got)
	}
	if out := d.install(t, box.ID, aptInstall); !strings.HasSuffix(out, "install ok installed") {
		t.Errorf("apt installed nothing:\n%s", out)
	}
	d.kill(t, box)
}

// install runs a shell script, which must succeed, and returns its output.
func (d *daemon) install(t *testing.T, id, script string) string {
	t.Helper()
	began := time.Now()
	e, err := d.Exec(d.ctx(t, installLimit+time.Minute), id, client.ExecRequest{
		Args: []string{"/bin/sh", "-c", script}, TimeoutSecs: installLimit.Seconds(),
	})
	if err != nil || e.ExitCode != 0 {
		t.Fatalf("%+v, %v", e, err)
	}
	t.Logf("installed within %v", time.Since(began))
	return e.Stdout
}

// mirrorOf returns host and port of a line of sources.list.
func mirrorOf(t *testing.T, line string) string {
	t.Helper()
	for field := range strings.FieldsSeq(line) {
		u, err := url.Parse(field)
		if err != nil || u.Host == "" {
			continue
		}
		if u.Port() != "" {
			return u.Host
		}
		return net.JoinHostPort(u.Host, map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	t.Fatalf("the image's sources have no mirror: %q", line)
	return ""
}

// rulesFor returns the policy rules for a registry. The first rule has the registry's name. If the
// name resolves to a private address, for example of a proxy, the second rule has that address,
// because a rule with a name does not allow private addresses.
func rulesFor(t *testing.T, registry string) []string {
	t.Helper()
	conn, err := net.DialTimeout("tcp4", registry, quietLimit)
	if err != nil {
		t.Fatalf("this test installs from package registries: %v", err)
	}
	defer conn.Close()
	return []string{registry, conn.RemoteAddr().String()}
}
