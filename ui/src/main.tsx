import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./App";
import { interceptLinks } from "./router";

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no #app");
interceptLinks();
render(<App />, root);
