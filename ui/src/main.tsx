import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { QueuePage } from "./pages/QueuePage";

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no #app");
render(<QueuePage />, root);
