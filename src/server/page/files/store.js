// What this browser keeps: the conversation and the settings. The API key lives as long as the tab.
const kConversation = "pivot.conversation";
const kSettings = "pivot.settings";
const kKey = "pivot.key";

function read(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// A browser may refuse to keep anything; the page works all the same.
function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch (error) {
    console.warn("not kept:", error.message);
  }
}

export const loadConversation = () => read(localStorage, kConversation, []);
export const saveConversation = (messages) => write(localStorage, kConversation, messages);

export function loadSettings(form) {
  const values = read(localStorage, kSettings, {});
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.name === "key") field.value = read(sessionStorage, kKey, "");
    else if (field.type === "checkbox") field.checked = values[field.name] ?? field.checked;
    else field.value = values[field.name] ?? field.value;
  }
}

export function saveSettings(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name || field.name === "key") continue;
    values[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  write(localStorage, kSettings, values);
  write(sessionStorage, kKey, form.elements.key.value);
}
