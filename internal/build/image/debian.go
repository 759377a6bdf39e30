package image

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
)

// dpkgExcludes excludes documentation and translations, both in the build and when a guest installs
// packages. Copyright files stay because licences require them.
func dpkgExcludes() []string {
	return []string{
		"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
		"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*", "path-exclude=/usr/share/groff/*",
		"path-exclude=/usr/share/lintian/*", "path-exclude=/usr/share/locale/*",
	}
}

// openDebian runs mmdebstrap and returns the archive that mmdebstrap writes: a minimal Debian
// system. Close waits until mmdebstrap has exited.
func openDebian(ctx context.Context, suite string, packages []string, line func(string)) io.ReadCloser {
	r, w := io.Pipe()
	p := &producer{PipeReader: r, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		w.CloseWithError(debianSource(ctx, w, suite, packages, line))
	}()
	return p
}

// producer is the reading end of a pipe. Close also waits for the goroutine that writes to the
// pipe.
type producer struct {
	*io.PipeReader
	ended chan struct{}
}

// Close implements io.Closer.
func (p *producer) Close() error {
	err := p.PipeReader.Close()
	<-p.ended
	return err
}

// debianSource writes the archive of a minimal Debian system to w. The system is of the given
// suite, and has the given packages.
func debianSource(ctx context.Context, w io.Writer, suite string, packages []string, line func(string)) error {
	sources, err := debianSources(ctx, suite)
	if err != nil {
		return err
	}
	argv := []string{"mmdebstrap", "--variant=minbase", "--format=tar", "--mode=unshare"}
	if os.Geteuid() == 0 {
		argv[len(argv)-1] = "--mode=root"
	}
	for _, opt := range dpkgExcludes() {
		argv = append(argv, "--dpkgopt="+opt)
	}
	opts, err := aptAcquireOptions(ctx)
	if err != nil {
		return err
	}
	for _, opt := range append(opts, `APT::Install-Recommends "false";`) {
		argv = append(argv, "--aptopt="+opt)
	}
	if len(packages) > 0 {
		argv = append(argv, "--include="+strings.Join(packages, ","))
	}
	argv = append(argv,
		// Packages with alternatives, such as Java's, create links to manual pages in this
		// directory, and fail if it is missing.
		`--essential-hook=mkdir -p "$1/usr/share/man/man1"`,
		// Remove settings that are for the build only: the name servers, the host name, and the
		// host's proxies, which may contain credentials.
		`--customize-hook=rm "$1/etc/apt/apt.conf.d/99mmdebstrap"`,
		`--customize-hook=echo 'APT::Install-Recommends "false";' >"$1/etc/apt/apt.conf.d/99forkd"`,
		`--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname" && touch "$1/etc/resolv.conf" && echo sandbox >"$1/etc/hostname"`,
		suite, "-")
	return run(ctx, strings.NewReader(strings.Join(sources, "\n")+"\n"), w, line, append(argv, "-")...)
}

// debianSources returns the lines of a sources.list for the given suite. The lines have the
// mirrors, components and keyrings of the host's apt. If the host uses another suite, the name of
// that suite is replaced with the given suite.
func debianSources(ctx context.Context, suite string) ([]string, error) {
	text, err := output(ctx, nil, 16*mib, "apt-get", "indextargets", "--format",
		"$(CREATED_BY) $(ORIGIN) $(CODENAME) $(RELEASE) $(COMPONENT) $(REPO_URI)")
	if err != nil {
		return nil, fmt.Errorf("ask apt for its sources: %w", err)
	}
	lines, err := sourcesFor(suite, text)
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, &MissingError{Problem: "apt on this host has no Debian repository in its sources: add one and run apt-get update, " +
			"or use a container image as the base (docker://, oci:, docker-archive:)"}
	}
	return lines, nil
}

// sourcesFor converts indextargets to deb lines. For the fields of indextargets, see debianSources.
// If the host's sources have the suite, such as trixie, the result is their lines for trixie,
// trixie-updates and trixie-security. If the host's sources lack the suite, the lines are derived
// from the lines of the host's own suite.
func sourcesFor(suite string, indextargets []byte) ([]string, error) {
	components := make(map[string][]string) // components of each "URI suite"
	var order []string
	exact := false
	sc := bufio.NewScanner(bytes.NewReader(indextargets))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 6 || f[0] != "Packages" || f[1] != "Debian" {
			continue
		}
		codename, release, component, uri := f[2], f[3], f[4], f[5]
		if u, err := url.Parse(uri); err != nil || u.User != nil {
			return nil, &MissingError{Problem: "a Debian repository in apt's sources has credentials in its address, and they would end up in the image: " +
				"use a proxy or a mirror without credentials"}
		}
		host, pocket, _ := strings.Cut(codename, "-")
		dist := suite
		if pocket != "" {
			dist += "-" + pocket
		}
		if pocket != "" && pocket != "updates" && pocket != "security" {
			continue // backports and proposed updates are opt-in
		}
		if host == suite || strings.TrimSuffix(release, "-"+pocket) == suite {
			if !exact {
				exact, order = true, nil
				clear(components)
			}
		} else if exact {
			continue
		}
		key := uri + " " + dist
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
		if !slices.Contains(components[key], component) {
			components[key] = append(components[key], component)
		}
	}
	var lines []string
	for _, key := range order {
		lines = append(lines, "deb "+key+" "+strings.Join(components[key], " "))
	}
	return lines, sc.Err()
}

// aptAcquireOptions returns the host's settings for downloading (proxies, timeouts, certificates,
// date checks) in the syntax of apt.conf.
func aptAcquireOptions(ctx context.Context) ([]string, error) {
	text, err := output(ctx, nil, mib, "apt-config", "dump", "--no-empty", "--format", `%F "%v";%n`,
		"Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::ForceIPv4", "Acquire::ForceIPv6",
		"Acquire::Check-Valid-Until", "Acquire::Check-Date")
	if err != nil {
		return nil, fmt.Errorf("ask apt for its download settings: %w", err)
	}
	var opts []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			opts = append(opts, line)
		}
	}
	return opts, nil
}
