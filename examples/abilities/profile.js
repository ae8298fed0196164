export async function wrapper(payload) {
  const name = encodeURIComponent(payload.username);
  const response = await fetch(`http://127.0.0.1:8099/users/${name}`);
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response;
}
