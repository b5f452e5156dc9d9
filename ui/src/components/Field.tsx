/** Form fields of dialogs, each with a label. */
import type { ComponentChildren } from "preact";

export function Field({ label, wide = false, children }: { label: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <label class={`field${wide ? " across" : ""}`}>
      <span>{label}</span>
      {children}
    </label>
  );
}

interface TextProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  testId: string;
  wide?: boolean;
  required?: boolean;
  placeholder?: string;
  /** Id of a datalist with suggestions. */
  list?: string;
}

export function TextField({ label, value, onInput, testId, wide = false, required = false, placeholder = "", list }: TextProps) {
  return (
    <Field label={label} wide={wide}>
      <input type="text" autocomplete="off" spellcheck={false} required={required} placeholder={placeholder} list={list} value={value} data-testid={testId} onInput={(event) => onInput(event.currentTarget.value)} />
    </Field>
  );
}

interface SelectProps<T extends string> {
  label: string;
  value: T;
  options: readonly (readonly [value: T, label: string])[];
  onPick: (value: T) => void;
  testId: string;
  wide?: boolean;
}

export function SelectField<T extends string>({ label, value, options, onPick, testId, wide = false }: SelectProps<T>) {
  return (
    <Field label={label} wide={wide}>
      <select class="select" value={value} data-testid={testId} onChange={(event) => onPick(event.currentTarget.value as T)}>
        {options.map(([each, optionLabel]) => (
          <option key={each} value={each} selected={each === value}>
            {optionLabel}
          </option>
        ))}
      </select>
    </Field>
  );
}

interface CheckProps {
  label: string;
  checked: boolean;
  onCheck: (checked: boolean) => void;
}

export function CheckField({ label, checked, onCheck }: CheckProps) {
  return (
    <label class="switch across">
      <input type="checkbox" checked={checked} onChange={(event) => onCheck(event.currentTarget.checked)} />
      {label}
    </label>
  );
}
