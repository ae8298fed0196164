"""A model writes code against your functions: what it is shown, what it may write, what you get back."""

import asyncio
from dataclasses import dataclass

import hutch


@dataclass
class Product:
    """Something that is for sale."""

    name: str
    price: float
    stock: int


SHELF = [Product("lamp", 29.0, 3), Product("desk", 180.0, 0), Product("chair", 75.5, 8)]


async def search(text: str = "", most: float | None = None) -> list[Product]:
    """Find products.

    Args:
        text: Part of the name.
        most: The highest price.
    """
    return [each for each in SHELF if text in each.name and (most is None or each.price <= most)]


def reserve(name: str, count: int = 1) -> int:
    """Set some aside; returns how many are left."""
    product = next(each for each in SHELF if each.name == name)
    if product.stock < count:
        raise hutch.ToolError(f"only {product.stock} of {name} left")
    product.stock -= count
    return product.stock


# What a model would write. TypeScript is fine, and so are several calls at once.
CODE = """
const cheap = (await shop.search({ most: 100 })).filter((each) => each.stock > 0);
const left: number[] = await Promise.all(cheap.map(({ name }) => shop.reserve({ name, count: 2 })));
console.log("reserved", cheap.map((each) => each.name));
try {
  await shop.reserve({ name: "desk" });
} catch (error) {
  console.log(error.code, error.message);
}
return { left, total: cheap.reduce((sum, each) => sum + 2 * each.price, 0) };
"""


async def main() -> None:
    shop = hutch.Provider.of(search, reserve, name="shop")
    print(shop.declarations())
    async with hutch.Hutch() as h:
        r = await h.run(CODE, tools=shop)
    print(*r.logs, sep="\n")
    print(r.result if r.ok else r.error)


if __name__ == "__main__":
    asyncio.run(main())
