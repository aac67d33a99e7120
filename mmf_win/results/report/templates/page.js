"use strict";
const pictures = [...document.querySelectorAll("button.picture")];
const all = document.querySelector("button.all");

function press(button, shown) {
  button.setAttribute("aria-pressed", String(shown));
}

function sum_up() {
  if (!all) return;
  const shown = pictures.every(button => button.getAttribute("aria-pressed") === "true");
  press(all, shown);
  all.textContent = shown ? "Blur all pictures" : "Show all pictures";
}

for (const button of pictures) {
  button.addEventListener("click", () => {
    press(button, button.getAttribute("aria-pressed") !== "true");
    sum_up();
  });
}
if (all) {
  all.addEventListener("click", () => {
    const show = all.getAttribute("aria-pressed") !== "true";
    pictures.forEach(button => press(button, show));
    sum_up();
  });
}
