// Tooltips at the pointer instead of the browser's, which come late. The page is complete without.
(function () {
  "use strict";
  var tip = document.getElementById("tip");
  var marked = document.querySelectorAll("[data-tip]");
  function show(event) {
    tip.textContent = event.currentTarget.getAttribute("data-tip");
    tip.hidden = false;
    var room = document.documentElement.clientWidth - tip.offsetWidth - 12;
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, room)) + "px";
    tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 12) + "px";
  }
  marked.forEach(function (element) {
    var title = element.querySelector("title");
    if (title) { title.remove(); }
    element.addEventListener("mousemove", show);
    element.addEventListener("mouseleave", function () { tip.hidden = true; });
  });
})();
