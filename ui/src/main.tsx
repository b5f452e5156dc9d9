import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { QueuePage } from "./pages/QueuePage";
import { SignInPage } from "./pages/SignInPage";
import { useSession } from "./session";

function App() {
  const [session, setSession] = useSession();
  if (session === "unknown") return null;
  if (session === "signed-out") return <SignInPage onSignedIn={() => setSession("signed-in")} />;
  return <QueuePage onSignedOut={() => setSession("signed-out")} />;
}

const root = document.getElementById("app");
if (root === null) throw new Error("index.html has no #app");
render(<App />, root);
