// The files of a sandbox.
import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import * as api from "./api";
import { Calls, Note, Problem, useLoad } from "./dialog";
import { bytes } from "./text";

const maxEdit = 256 * 1024;
const maxShown = 2000;

const url = (id: string, path: string, rest = "") => api.box(id, `/files${rest}?path=${encodeURIComponent(path)}`);
const join = (dir: string, name: string) => `${dir === "/" ? "" : dir}/${name}`;

export function FilesTab({ id }: { id: string }) {
  const [dir, setDir] = useState(() => sessionStorage.getItem(`dir ${id}`) ?? "/");
  const [edited, setEdited] = useState<string>();
  const [failed, setFailed] = useState("");
  const { value, problem, again } = useLoad(() => api.get<api.File[]>(url(id, dir, "/list")), [id, dir]);
  const go = (path: string) => {
    sessionStorage.setItem(`dir ${id}`, path);
    setDir(path);
    setEdited(undefined);
  };
  const upload = async (list: FileList | null) => {
    setFailed("");
    try {
      for (const f of list ?? []) await api.call("PUT", url(id, join(dir, f.name)), f);
    } catch (e) {
      setFailed((e as Error).message);
    }
    again();
  };
  const parts = dir.split("/").filter(Boolean);
  const files = [...(value ?? [])].sort((a, b) => Number(b.type === "directory") - Number(a.type === "directory") || (a.name < b.name ? -1 : 1));
  return (
    <Fragment>
      <div class="toolbar">
        <nav class="crumbs" aria-label="Directory">
          <button class="tab" onClick={() => go("/")}>/</button>
          {parts.map((name, i) => (
            <button class="tab" onClick={() => go(`/${parts.slice(0, i + 1).join("/")}`)}>{name}</button>
          ))}
        </nav>
        <span class="fill" />
        <label class="upload">Upload <input type="file" multiple onChange={(e) => upload((e.target as HTMLInputElement).files)} /></label>
      </div>
      <Problem text={problem || failed} />
      {edited !== undefined ? <Editor id={id} path={edited} close={() => { setEdited(undefined); again(); }} /> : (
        <table class="file-list">
          <thead><tr><th>Name</th><th>Size</th><th>Permissions</th><th>Owner</th><th>Modified</th><th>Download</th></tr></thead>
          <tbody>
            {files.slice(0, maxShown).map((f) => (
              <tr key={f.path}>
                <td>
                  <button class={`link ${f.type}`} onClick={() => (f.type === "directory" ? go(f.path) : setEdited(f.path))}
                    disabled={f.type !== "directory" && f.size > maxEdit}>{f.name}{f.type === "directory" ? "/" : ""}</button>
                  {f.symlink_target !== undefined && <small> → {f.symlink_target}</small>}
                </td>
                <td>{f.type === "directory" ? "" : bytes(f.size)}</td>
                <td><code>{f.permissions}</code></td>
                <td>{f.owner}</td>
                <td>{new Date(f.modified).toLocaleString()}</td>
                <td>{f.type === "file" && <a href={url(id, f.path)} download={f.name} aria-label={`Download ${f.name}`}>↓</a>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {files.length > maxShown && <Note>{files.length - maxShown} more files are not shown.</Note>}
      <Calls name="list" values={{ id, path: dir }} />
    </Fragment>
  );
}

function Editor({ id, path, close }: { id: string; path: string; close: () => void }) {
  const [text, setText] = useState<string>();
  const [failed, setFailed] = useState("");
  const { value, problem } = useLoad(async () => {
    const content = await (await api.send("GET", url(id, path))).arrayBuffer();
    return new TextDecoder("utf-8", { fatal: true }).decode(content);
  }, [id, path]);
  const save = async (e: Event) => {
    e.preventDefault();
    try {
      await api.call("PUT", url(id, path), new Blob([text ?? value!]));
      close();
    } catch (e) {
      setFailed((e as Error).message);
    }
  };
  return (
    <form onSubmit={save} class="code-form">
      <label for="editor"><code>{path}</code></label>
      <Problem text={failed || (problem && `This file cannot be shown as text: ${problem}`)} />
      <textarea id="editor" rows={20} spellcheck={false} disabled={value === undefined} value={text ?? value ?? ""}
        onInput={(e) => setText((e.target as HTMLTextAreaElement).value)} />
      <div class="buttons">
        <button type="button" onClick={close}>Close</button>
        <button class="primary" disabled={text === undefined || text === value}>Save</button>
      </div>
    </form>
  );
}
