// Shows the document of this very server. Nothing is loaded from or sent to anywhere else, and a token is forgotten with the
// page.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#page",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  persistAuthorization: false,
  validatorUrl: null,
  queryConfigEnabled: false,
});
