/** Descriptions, in which text between backquotes is code. */

import { visible } from "../format.ts";

export function Text({ text, class: name = "api-text" }: { text: string; class?: string }) {
  return (
    <p class={name}>
      {visible(text).split("`").map((part, index) => index % 2 ? <code key={index}>{part}</code> : part)}
    </p>
  );
}
