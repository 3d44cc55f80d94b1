// Switches between the light and dark palette; without it the system's choice holds.
const root = document.documentElement;
const button = document.getElementById("theme");
button.hidden = false;
button.addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = dark ? "light" : "dark";
});
