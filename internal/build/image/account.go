package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// The account that "user: true" in a recipe requests. Its name and number are those of E2B's
// images. If the number is taken, the account gets the next free one.
const (
	accountName       = "user"
	minUserID         = 1000
	maxUserID         = 59999 // Debian policy §9.2.2
	maxAccountBytes   = 1 << 20
	maxAccountLinks   = 16
	skeletonDir       = "etc/skel/"
	sudoersDir        = "etc/sudoers.d"
	accountHome       = "home/" + accountName
	sudoersLine       = accountName + " ALL=(ALL:ALL) NOPASSWD: ALL\n"
	passwd, grp, shdw = "etc/passwd", "etc/group", "etc/shadow"
)

// account collects the files of an archive that are needed to add an account.
type account struct {
	files    map[string]overlayFile // passwd, group and shadow, as the archive has them
	skeleton []overlayFile          // content of a new home directory
	links    []*tar.Header          // hard links to files; they must come after their files
	bytes    int64
}

// holds reports whether the entry with a clean name is written at the end.
func (a *account) holds(name string) bool {
	_, isFile := a.files[name]
	return isFile || slices.ContainsFunc(a.links, func(h *tar.Header) bool { return h.Name == name })
}

// take looks at an entry with a clean name. If held is true, addAccount writes the entry at the
// end. Otherwise the caller writes it with the content of rest.
func (a *account) take(name string, h *tar.Header, data io.Reader) (rest io.Reader, held bool, err error) {
	isFile := name == passwd || name == grp || name == shdw
	if isFile && h.Typeflag != tar.TypeReg {
		return nil, false, errors.New("user: an account can be added to a regular file only")
	}
	if h.Typeflag == tar.TypeLink && a.holds(h.Linkname) {
		if len(a.links) >= maxAccountLinks {
			return nil, false, fmt.Errorf("user: more than %d hard links to the files of accounts", maxAccountLinks)
		}
		a.links = append(a.links, h)
		return nil, true, nil
	}
	if !isFile && (h.Typeflag != tar.TypeReg || !strings.HasPrefix(name, skeletonDir)) {
		return data, false, nil
	}
	if a.bytes += h.Size; a.bytes > maxAccountBytes {
		return nil, false, fmt.Errorf("user: the files of accounts, and /etc/skel, are larger than %d bytes", maxAccountBytes)
	}
	content, err := io.ReadAll(data)
	if err != nil {
		return nil, false, err
	}
	o := overlayFile{name: name, typ: tar.TypeReg, mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid, data: content}
	if isFile {
		a.files[name] = o
		return nil, true, nil
	}
	o.name = accountHome + "/" + strings.TrimPrefix(name, skeletonDir)
	a.skeleton = append(a.skeleton, o)
	return bytes.NewReader(content), false, nil
}

// addAccount writes the account files, with the new account in them. An account that the image
// already has is not changed.
func (f *tarFilter) addAccount() error {
	files := f.account.files
	for _, o := range f.defaults {
		if o.name != passwd && o.name != grp || len(files[o.name].data) > 0 {
			continue
		}
		if _, held := files[o.name]; !held { // the path of o has not been checked yet
			if err := f.claim(o.name, o.typ); err != nil {
				return fmt.Errorf("/%s: %w", o.name, err)
			}
		}
		files[o.name] = o
	}
	var home []overlayFile
	if field(files[passwd].data, accountName, 0) == "" {
		gid, err := accountID(files, grp)
		if err != nil {
			return err
		}
		uid, err := accountID(files, passwd)
		if err != nil {
			return err
		}
		shell := "/bin/sh"
		if f.seen["bin/bash"] == tar.TypeReg || f.seen["usr/bin/bash"] == tar.TypeReg {
			shell = "/bin/bash"
		}
		appendLine(files, passwd, fmt.Sprintf("%s:x:%d:%d::/%s:%s", accountName, uid, gid, accountHome, shell))
		if field(files[grp].data, accountName, 0) == "" {
			appendLine(files, grp, fmt.Sprintf("%s:x:%d:", accountName, gid))
		}
		if _, ok := files[shdw]; ok && field(files[shdw].data, accountName, 0) == "" {
			appendLine(files, shdw, accountName+":*::0:99999:7:::") // no password; never expires
		}
		home = append(home, overlayFile{name: accountHome, typ: tar.TypeDir, mode: 0o755, uid: uid, gid: gid})
		for _, o := range f.account.skeleton {
			o.uid, o.gid = uid, gid
			home = append(home, o)
		}
	}
	for _, name := range []string{passwd, grp, shdw} {
		if o, ok := files[name]; ok {
			if err := f.put(o); err != nil {
				return err
			}
		}
	}
	for _, h := range f.account.links {
		if err := f.write(h.Name, h, nil); err != nil {
			return err
		}
	}
	if f.seen[sudoersDir] == tar.TypeDir { // the package sudo is installed
		home = append(home, overlayFile{name: sudoersDir + "/" + accountName, typ: tar.TypeReg, mode: 0o440,
			data: []byte(sudoersLine)})
	}
	for _, o := range home {
		if _, has := f.seen[o.name]; has {
			continue
		}
		if err := f.add(o); err != nil {
			return fmt.Errorf("/%s: %w", o.name, err)
		}
	}
	return nil
}

// accountID returns the number of the account if a file has it, or else a free number.
func accountID(files map[string]overlayFile, name string) (int, error) {
	text := files[name].data
	if id, err := strconv.Atoi(field(text, accountName, 2)); err == nil {
		return id, nil
	}
	taken := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 2 {
			taken[f[2]] = true
		}
	}
	for id := minUserID; id <= maxUserID; id++ {
		if !taken[strconv.Itoa(id)] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("/%s has no number left for an account", name)
}

// field returns the n-th field of an account's line, or "" if there is no such line.
func field(text []byte, name string, n int) string {
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); f[0] == name && n < len(f) {
			return f[n]
		}
	}
	return ""
}

func appendLine(files map[string]overlayFile, name, line string) {
	o := files[name]
	o.data = slices.Clone(o.data)
	if len(o.data) > 0 && o.data[len(o.data)-1] != '\n' {
		o.data = append(o.data, '\n')
	}
	o.data = append(o.data, line+"\n"...)
	files[name] = o
}
