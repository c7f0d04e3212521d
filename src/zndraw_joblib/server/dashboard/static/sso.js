// Log in at the identity provider: the authorization code flow with PKCE (RFC 6749, RFC 7636), without a secret.
import { config, setToken, ssoFault, token } from "./auth.js";
import { effect } from "./lib.js";

const [BEGUN, RENEWAL] = ["zndraw-joblib log-in", "zndraw-joblib renewal"];
// Seconds before the end of a token at which the page asks for the next one, and the longest time of a request.
const [EARLY, TIMEOUT] = [30, 15];

const base64 = (bytes) =>
  btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => base64(crypto.getRandomValues(new Uint8Array(32)));
const address = () => new URL(".", document.baseURI).href;

function stored(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key));
  } catch {
    return null;
  }
}

// Go to the provider, which sends the browser back to this page.
export async function begin() {
  ssoFault.value = "";
  if (!crypto.subtle) {
    ssoFault.value = "This browser permits a log-in only on pages of https, or of this machine.";
    return;
  }
  const { authorization_endpoint: endpoint, client_id: client, scope, parameters } = config.value.sign_in;
  const [verifier, state] = [random(), random()];
  try {
    sessionStorage.setItem(BEGUN, JSON.stringify({ verifier, state, hash: location.hash }));
  } catch {
    ssoFault.value = "This browser keeps no data of this page: allow it, or enter a token.";
    return;
  }
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const target = new URL(endpoint);
  const query = { response_type: "code", client_id: client, redirect_uri: address(), scope, state,
    code_challenge: base64(new Uint8Array(digest)), code_challenge_method: "S256", ...parameters };
  for (const [name, value] of Object.entries(query)) target.searchParams.set(name, value);
  location.assign(target);
}

// At the start of the page: take what the provider has sent with the browser, or renew a token that has ended.
export async function resume() {
  const answer = new URLSearchParams(location.search);
  const begun = stored(BEGUN);
  if (answer.has("state") && (answer.has("code") || answer.has("error"))) {
    sessionStorage.removeItem(BEGUN);
    // A code is used once, and stays in no history.
    history.replaceState(null, "", `${location.pathname}${begun?.hash ?? ""}`);
    if (!begun || begun.state !== answer.get("state")) ssoFault.value = "This log-in was not begun in this tab. Log in again.";
    else if (answer.has("error")) ssoFault.value = `The provider refused: ${answer.get("error_description") ?? answer.get("error")}`;
    else await exchange({ grant_type: "authorization_code", code: answer.get("code"), redirect_uri: address(), code_verifier: begun.verifier });
  } else if (token.value) await renewInTime();
  // Who logs out, or is refused, needs the provider again.
  effect(() => token.value === "" && forget());
}

let timer;

function forget() {
  clearTimeout(timer);
  try {
    sessionStorage.removeItem(RENEWAL);
  } catch {
    // The browser forbids storage.
  }
}

async function exchange(form) {
  const { token_endpoint: endpoint, client_id: client } = config.value.sign_in;
  try {
    const response = await fetch(endpoint, { method: "POST", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT * 1000),
      body: new URLSearchParams({ ...form, client_id: client }) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error_description ?? answer.error ?? `status ${response.status}`);
    // An access token that is no JWT is only for the provider itself; its ID token says who the user is.
    const found = [answer.access_token, answer.id_token].find((text) => text?.split(".").length === 3);
    if (!found) throw new Error("it sent no JSON Web Token");
    setToken(found);
    const renewal = { token: answer.refresh_token ?? form.refresh_token, at: Date.now() + ((answer.expires_in ?? 300) - EARLY) * 1000 };
    if (renewal.token) sessionStorage.setItem(RENEWAL, JSON.stringify(renewal));
    await renewInTime();
  } catch (error) {
    ssoFault.value = `The log-in failed: ${error.message}`;
  }
}

async function renewInTime() {
  clearTimeout(timer);
  const renewal = stored(RENEWAL);
  if (!renewal) return;
  const renew = () => exchange({ grant_type: "refresh_token", refresh_token: renewal.token });
  const rest = renewal.at - Date.now();
  if (rest <= 0) await renew();
  else timer = setTimeout(renew, Math.max(rest, 5000));
}
