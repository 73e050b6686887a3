// Shows the OpenAPI document of this server. Nothing is loaded from or sent to another server. Requests use the token of the console
// in this tab, if there is one; a token that is entered here is not stored.

"use strict";

(() => {
  const consoleToken = () => {
    try {
      return sessionStorage.getItem("plantstore-token");
    } catch {
      // Storage is disabled.
      return null;
    }
  };
  const page = SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#page",
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    persistAuthorization: false,
    validatorUrl: null,
    queryConfigEnabled: false,
    onComplete: () => {
      const token = consoleToken();
      if (token === null) return;
      page.preauthorizeApiKey("bearer", token);
      document.getElementById("token-note").hidden = false;
    },
  });
})();
