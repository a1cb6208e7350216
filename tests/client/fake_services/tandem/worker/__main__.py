from tests.client.fake_service import main

main("worker")
