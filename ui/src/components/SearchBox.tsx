/** A text to look for, which counts once it is entered. What is being typed is kept here: the page is drawn anew every few seconds, and must not take it away. */
import { useEffect, useState } from "preact/hooks";

interface Props {
  label: string;
  placeholder: string;
  value: string;
  onEnter: (value: string) => void;
  testId: string;
  small?: boolean;
}

export function SearchBox({ label, placeholder, value, onEnter, testId, small = false }: Props) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return (
    <input
      type="search"
      class={`search${small ? " small" : ""}`}
      placeholder={placeholder}
      aria-label={label}
      value={draft}
      data-testid={testId}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => onEnter(event.currentTarget.value)}
    />
  );
}
