// An OpenID Connect provider at PORT; prints its issuer, and then the path of each request. Its users log in with any name and password.
//
// Environment: JWKS, its private keys, and REDIRECT, the page that is its client `page`. The name of a user says
// its claims: `anna.operator.lab` has the role `operator` and the room `lab`.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const server = createServer().listen(Number(process.env.PORT), "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    jwks: JSON.parse(process.env.JWKS),
    clients: [{ client_id: "page", token_endpoint_auth_method: "none", redirect_uris: [process.env.REDIRECT],
      grant_types: ["authorization_code", "refresh_token"], response_types: ["code"] }],
    clientBasedCORS: () => true,
    cookies: { keys: ["of a test"] },
    claims: { openid: ["sub"], profile: ["groups", "rooms"] },
    scopes: ["openid", "profile", "offline_access"],
    issueRefreshToken: async () => true,
    ttl: { AccessToken: Number(process.env.SECONDS ?? 600), IdToken: 600 },
    findAccount: async (_, id) => ({ accountId: id, claims: async () => ({ sub: id, ...claims(id) }) }),
    extraTokenClaims: async (_, token) => claims(token.accountId),
    features: {
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: async () => ({ scope: "", audience: "https://queue.example", accessTokenFormat: "jwt" }),
        useGrantedResource: async () => true,
      },
    },
  });
  server.on("request", (request) => console.log(request.url));
  server.on("request", provider.callback());
  console.log(issuer);
});

function claims(id) {
  const [, role, ...rooms] = id.split(".");
  return { groups: role ? [role] : [], rooms };
}
