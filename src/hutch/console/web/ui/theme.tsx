/** Switch for the colours of the page: as in the system, light or dark. The browser stores the choice. */

import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";

type Theme = "auto" | "light" | "dark";
const THEMES: Theme[] = ["auto", "light", "dark"];

function storedTheme(): Theme {
  const stored = localStorage.getItem("theme");
  return THEMES.find((theme) => theme === stored) ?? "auto";
}

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState(storedTheme);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return [theme, () => setTheme((old) => THEMES[(THEMES.indexOf(old) + 1) % THEMES.length])];
}

export function ThemeButton() {
  const [theme, nextTheme] = useTheme();
  return (
    <button type="button" class="nav" onClick={nextTheme} title="Change the colours">
      <Icon name={theme === "dark" ? "moon" : theme === "light" ? "sun" : "contrast"} />
      <span>{theme === "auto" ? "System colours" : theme === "dark" ? "Dark" : "Light"}</span>
    </button>
  );
}
