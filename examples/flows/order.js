export async function wrapper({ shop, articles, ticket }) {
  const response = await fetch(`${shop}/orders`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ articles, ticket }),
  });
  if (!response.ok) throw new Error(`the shop answered ${response.status}`);
  return response;
}
