"""TypeScript declarations of `files` and `display`."""

from __future__ import annotations

FILE_DECLARATIONS = {
    "files": """\
const files: {
  /** Lists the input files. */
  list(): { name: string; size: number; type: string }[];
  read(name: string): Promise<Uint8Array<ArrayBuffer>>;
  text(name: string): Promise<string>;
  /** Adds a file to the result of the run. The type is a MIME type. */
  write(name: string, data: string | ArrayBuffer | ArrayBufferView, type?: string): Promise<void>;
};""",
    "display": """\
/** Adds an image (bytes or a data URL), a text or a JSON value to the files of the result. */
function display(value: unknown, type?: string): Promise<void>;""",
}
"""Declarations inside of `declare global`, by name."""
