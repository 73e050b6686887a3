// The collection of plants in PocketBase: each user sees and creates only their own.
migrate((app) => {
  const users = app.findCollectionByNameOrId("users");
  app.save(new Collection({
    type: "base",
    name: "plants",
    listRule: "owner = @request.auth.id",
    createRule: "@request.auth.id != '' && owner = @request.auth.id",
    fields: [
      { type: "relation", name: "owner", required: true, collectionId: users.id, maxSelect: 1 },
      { type: "number", name: "plant", required: true, onlyInt: true },
      { type: "text", name: "name", required: true },
      { type: "text", name: "tag" },
    ],
    indexes: ["CREATE UNIQUE INDEX plants_by_owner ON plants (owner, plant)"],
  }));
});
