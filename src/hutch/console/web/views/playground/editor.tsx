/** The code editor: TypeScript with diagnostics and completion of tools. */

import { autocompletion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab, isolateHistory } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, linter, lintGutter, lintKeymap } from "@codemirror/lint";
import { EditorState, Prec } from "@codemirror/state";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useLayoutEffect, useRef } from "preact/hooks";
import { post } from "../../api.ts";
import { visible } from "../../format.ts";
import type { Schema } from "../../ui/schema_form.tsx";

export interface ToolName {
  /** Expression that names the tool in a script, such as `tools.github.getIssue`. */
  scriptName: string;
  description?: string | null;
  inputSchema?: Schema | null;
  /** True if its server says that a call changes nothing. */
  readOnly?: boolean;
}

interface Problem {
  message: string;
  line: number;
  column: number;
  length: number;
}

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.controlKeyword, tags.operatorKeyword], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.className], color: "var(--code-type)" },
  { tag: tags.function(tags.variableName), color: "var(--code-function)" },
  { tag: tags.function(tags.propertyName), color: "var(--code-function)" },
]);

const CHECK_DELAY_MS = 300;

async function diagnose(view: EditorView): Promise<Diagnostic[]> {
  const { doc } = view.state;
  if (!doc.toString().trim()) return [];
  let problems: Problem[];
  try {
    ({ problems } = await post<{ problems: Problem[] }>("/console/check", { code: doc.toString() }));
  } catch {
    // Show no diagnostics. The page already says that the server is unreachable or the session has ended.
    return [];
  }
  return problems.map(({ message, line, column, length }) => {
    const { from, to } = doc.line(Math.min(Math.max(1, line), doc.lines));
    const start = Math.min(from + Math.max(0, column - 1), to);
    return {
      from: start,
      to: Math.min(start + Math.max(1, length), doc.length),
      severity: "error",
      message: visible(message),
    };
  });
}

/** Completes the next segment of a tool's name after `tools.`. */
function completeTools(tools: () => ToolName[]) {
  return (context: CompletionContext): CompletionResult | null => {
    const word = context.matchBefore(/tools(\.\w*)+$/);
    if (!word) {
      return context.explicit
        ? { from: context.pos, options: [{ label: "tools", type: "namespace" }] }
        : null;
    }
    const typed = word.text.split(".");
    const depth = typed.length - 1;
    const options = new Map<string, { label: string; type: string; info?: string }>();
    for (const { scriptName, description } of tools()) {
      const segments = scriptName.split(".");
      if (
        segments.length <= depth || segments.slice(0, depth).join(".") !== typed.slice(0, depth).join(".")
      ) continue;
      const isTool = segments.length === depth + 1;
      options.set(segments[depth], {
        label: segments[depth],
        type: isTool ? "function" : "namespace",
        info: isTool && description ? visible(description.slice(0, 600)) : undefined,
      });
    }
    return { from: context.pos - typed[depth].length, options: [...options.values()], validFor: /^\w*$/ };
  };
}

/**
 * `code` is the initial text. To replace the text later, change `loaded`. The editor does not follow `code`,
 * because that would undo text that is typed while the page is drawn.
 */
export function Editor({ code, loaded, onChange, onRun, tools, checks }: {
  code: string;
  /** Identifies the code that was loaded last; empty until code replaces the initial text. */
  loaded: string;
  onChange: (code: string) => void;
  onRun: () => void;
  tools: ToolName[];
  /** True if the server checks the types while the user types. */
  checks: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const editor = useRef<EditorView | undefined>(undefined);
  const current = useRef({ onChange, onRun, tools });
  current.current = { onChange, onRun, tools };
  // Use layout effects, because ordinary effects run up to 100 ms later and would replace what was typed
  // meanwhile.
  useLayoutEffect(() => {
    const run = { key: "Mod-Enter", run: () => (current.current.onRun(), true) };
    editor.current = new EditorView({
      parent: box.current!,
      state: EditorState.create({
        doc: code,
        extensions: [
          Prec.highest(keymap.of([run])),
          lineNumbers(),
          history(),
          indentOnInput(),
          bracketMatching(),
          highlightActiveLine(),
          javascript({ typescript: true }),
          syntaxHighlighting(COLOURS),
          autocompletion({ override: [completeTools(() => current.current.tools)] }),
          ...(checks ? [linter(diagnose, { delay: CHECK_DELAY_MS }), lintGutter()] : []),
          keymap.of([...defaultKeymap, ...historyKeymap, ...lintKeymap, indentWithTab]),
          EditorView.contentAttributes.of({ "aria-label": "Code" }),
          EditorView.lineWrapping,
          EditorView.updateListener.of((update) => {
            if (update.docChanged) current.current.onChange(update.state.doc.toString());
          }),
        ],
      }),
    });
    return () => editor.current?.destroy();
  }, [checks]);
  useLayoutEffect(() => {
    const view = editor.current!;
    if (!loaded) return;
    view.dispatch({
      changes: { from: 0, to: view.state.doc.length, insert: code },
      // Makes a single undo bring back the replaced code.
      annotations: isolateHistory.of("full"),
    });
  }, [loaded]);
  return <div class="editor" ref={box} />;
}
