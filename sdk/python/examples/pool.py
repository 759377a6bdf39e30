"""A pool of warm sandboxes for many short jobs, with asyncio."""

import asyncio

from forkd import AsyncClient

JOBS, SIZE = 12, 3


async def main():
    async with AsyncClient() as client, await client.fork("python-numpy", SIZE) as sandboxes:
        free = asyncio.Queue()
        for sandbox in sandboxes:
            free.put_nowait(sandbox)

        async def job(n):
            sandbox = await free.get()
            try:
                return int((await sandbox.commands.run(f"echo $(({n} * {n}))", check=True)).stdout)
            finally:
                free.put_nowait(sandbox)

        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(job(n)) for n in range(JOBS)]
        print(sum(j.result() for j in jobs))


asyncio.run(main())
