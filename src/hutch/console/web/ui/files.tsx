/** Files that code wrote: images to look at, and links to download the others. */

import { formatBytes, visible } from "../format.ts";

export interface ShownFile {
  name: string;
  mime_type: string;
  size: number;
  /** URL of the content; undefined if the server does not keep the content. */
  url?: string;
}

/** Types that the server serves as images. */
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"];

export function Files({ files }: { files: ShownFile[] }) {
  const images = files.filter((file) => file.url && IMAGES.includes(file.mime_type));
  return (
    <div class="stack">
      {images.map((file) => (
        <figure key={file.name} class="file-image">
          <img src={file.url} alt={visible(file.name)} />
        </figure>
      ))}
      <ul class="file-list">
        {files.map((file) => (
          <li key={file.name}>
            {file.url
              ? <a href={file.url} download={file.name}>{visible(file.name)}</a>
              : <span>{visible(file.name)}</span>}
            <span class="quiet">
              {visible(file.mime_type)} · {formatBytes(file.size)}
              {file.url ? "" : " · too long to be recorded"}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
