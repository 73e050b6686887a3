// Shows the OpenAPI document of this server. Nothing is loaded from or sent to another server, and tokens are not stored.
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
